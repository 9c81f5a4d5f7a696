// Kernels bound by memory, by name (calibrate/bench/cuda/points.hpp).
#include <fmt/format.h>

#include <numeric>
#include <random>

#include "calibrate/bench/cuda/kernels.hpp"
#include "calibrate/bench/cuda/points.hpp"

namespace plimsoll::calibrate::cuda {
namespace {

constexpr std::int64_t width = 4096;   // of a row: a hidden state
constexpr std::int64_t vocab = 32000;  // of the loss
constexpr std::int64_t head = 128;

using Shared = std::shared_ptr<Buffer>;
Shared random(std::int64_t elements, unsigned seed) {
  return std::make_shared<Buffer>(random_bf16(elements, seed, main_stream().get()));
}
Shared random32(std::int64_t elements, unsigned seed) {
  return std::make_shared<Buffer>(random_fp32(elements, seed, main_stream().get()));
}
Shared empty(std::int64_t bytes) { return std::make_shared<Buffer>(static_cast<std::size_t>(bytes)); }

/// Row numbers 0 to `rows` in random order, or labels below `bound`.
Shared indices(std::int64_t count, std::int64_t bound) {
  std::vector<std::int64_t> list(static_cast<std::size_t>(count));
  std::minstd_rand engine(7);
  std::uniform_int_distribution<std::int64_t> uniform(0, bound - 1);
  for (auto& value : list) value = uniform(engine);
  Shared buffer = empty(count * 8);
  check(cudaMemcpy(buffer->get(), list.data(), buffer->bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
  return buffer;
}

double d(std::int64_t value) { return static_cast<double>(value); }

Prepared elementwise(const std::string& op, std::int64_t n) {
  const Shared a = random(n, 1);
  if (op == "fill") return {[=](cudaStream_t s) { launch_fill(a->get(), n, s); }, 2 * d(n)};
  if (op == "memset")
    return {[=](cudaStream_t s) { check(cudaMemsetAsync(a->get(), 0, a->bytes(), s), "cudaMemset"); }, 2 * d(n)};
  if (op == "upcast") {
    const Shared b = empty(4 * n);
    return {[=](cudaStream_t s) { launch_upcast(a->get(), b->get(), n, s); }, 6 * d(n)};
  }
  const Shared b = random(n, 2);
  if (op == "silu") return {[=](cudaStream_t s) { launch_silu(a->get(), b->get(), n, s); }, 4 * d(n)};
  if (op == "flat_copy") {
    return {[=](cudaStream_t s) {
              check(cudaMemcpyAsync(b->get(), a->get(), a->bytes(), cudaMemcpyDeviceToDevice, s), "cudaMemcpy");
            },
            4 * d(n)};
  }
  if (op == "strided_copy") {
    const Shared c = random(2 * n, 3);
    return {[=](cudaStream_t s) { launch_strided_copy(c->get(), b->get(), n / (head / 2), head, s); }, 4 * d(n)};
  }
  const Shared c = random(n, 3);
  if (op == "vectorized") return {[=](cudaStream_t s) { launch_add(a->get(), b->get(), c->get(), n, s); }, 6 * d(n)};
  if (op == "fused_swiglu")
    return {[=](cudaStream_t s) { launch_swiglu(a->get(), b->get(), c->get(), n, s); }, 6 * d(n)};
  const Shared e = empty(2 * n);
  const Shared f = empty(2 * n);
  return {[=](cudaStream_t s) { launch_swiglu_backward(a->get(), b->get(), c->get(), e->get(), f->get(), n, s); },
          10 * d(n)};
}

Prepared by_rows(const std::string& op, std::int64_t n) {
  const std::int64_t rows = n / width;
  const Shared x = random(n, 1);
  if (op == "reduce_rows") {
    const Shared sums = random32(width, 2);
    return {[=](cudaStream_t s) { launch_reduce_rows(x->get(), sums->as<float>(), rows, width, s); }, 2 * d(n)};
  }
  if (op == "fused_rotary") {
    const Shared angles = random32(4096 * head / 2, 2);
    return {[=](cudaStream_t s) {
              launch_rotary(x->get(), angles->as<float>(), angles->as<float>(), rows, width / head, head, s);
            },
            4 * d(n)};
  }
  const Shared weight = random(width, 3);
  const Shared y = random(n, 4);
  if (op == "fused_norm")
    return {[=](cudaStream_t s) { launch_norm(x->get(), weight->get(), y->get(), rows, width, s); }, 4 * d(n)};
  const Shared dx = empty(2 * n);
  return {[=](cudaStream_t s) { launch_norm_backward(x->get(), weight->get(), y->get(), dx->get(), rows, width, s); },
          6 * d(n)};
}

Prepared by_index(const std::string& op, std::int64_t n) {
  if (op == "softmax_loss") {
    const std::int64_t rows = std::max<std::int64_t>(1, n / vocab);
    const Shared logits = random(rows * vocab, 1);
    const Shared labels = indices(rows, vocab);
    const Shared loss = empty(rows * 4);
    return {[=](cudaStream_t s) {
              launch_softmax_loss(logits->get(), labels->as<std::int64_t>(), loss->as<float>(), rows, vocab, s);
            },
            6 * d(rows * vocab)};
  }
  const std::int64_t rows = std::max<std::int64_t>(1, n / width);
  const Shared which = indices(rows, vocab);
  if (op == "gather_rows") {
    const Shared table = random(vocab * width, 1);
    const Shared out = empty(2 * rows * width);
    return {[=](cudaStream_t s) { launch_gather(table->get(), which->as<std::int64_t>(), out->get(), rows, width, s); },
            4 * d(rows * width)};
  }
  const Shared in = random(rows * width, 1);
  const Shared table = random32(vocab * width, 2);
  return {[=](cudaStream_t s) {
            launch_scatter_add(in->get(), which->as<std::int64_t>(), table->as<float>(), rows, width, s);
          },
          10 * d(rows * width)};
}

}  // namespace

Prepared prepare_kernel(const Point& point) {
  const std::string op = point.label("op");
  const std::int64_t n = std::max<std::int64_t>(8, point.size("elements") / 8 * 8);
  for (const char* known : {"fill", "memset", "upcast", "silu", "flat_copy", "strided_copy", "vectorized",
                            "fused_swiglu", "fused_swiglu_backward"}) {
    if (op == known) return elementwise(op, n);
  }
  for (const char* known : {"reduce_rows", "fused_rotary", "fused_norm", "fused_norm_backward"}) {
    if (op == known) return by_rows(op, std::max(n, width));
  }
  for (const char* known : {"softmax_loss", "gather_rows", "embedding_backward"}) {
    if (op == known) return by_index(op, n);
  }
  if (op == "reduce_last") {
    const Shared x = random32(n, 1);
    const Shared sums = empty(4 * (n / width + 1));
    const std::int64_t rows = std::max<std::int64_t>(1, n / width);
    return {[=](cudaStream_t s) { launch_reduce_last(x->as<float>(), sums->as<float>(), rows, width, s); },
            4 * d(rows * width)};
  }
  if (op == "adamw") {
    const Shared p = random32(n, 1);
    const Shared g = random32(n, 2);
    const Shared m = random32(n, 3);
    const Shared v = empty(4 * n);
    check(cudaMemsetAsync(v->get(), 0, v->bytes(), main_stream().get()), "cudaMemset");
    return {[=](cudaStream_t s) { launch_adamw(p->as<float>(), g->as<float>(), m->as<float>(), v->as<float>(), n, s); },
            28 * d(n)};
  }
  throw Unsupported(fmt::format("there is no kernel {}", op));
}

}  // namespace plimsoll::calibrate::cuda
