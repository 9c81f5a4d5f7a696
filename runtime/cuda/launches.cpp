// Which kernel or library runs a routine on the device (runtime/cuda/cuda_backend.hpp).
#include <cmath>

#include "runtime/cuda/cuda_state.hpp"

namespace plimsoll {

namespace {

template <class T>
T* at(const Operand& operand) {
  return reinterpret_cast<T*>(operand.data);
}

}  // namespace

void CudaBackend::Impl::regroup(const Operation& o) {
  const auto [all, width, local, sources, segment, back, unused] = o.call().sizes;
  cuda::regroup(
      o.reads[0].data, o.writes[0].data, segment > 0 ? nullptr : at<int>(o.reads[1]),
      {all, width * size_of(o.reads[0].dtype), static_cast<int>(local), static_cast<int>(sources), segment, back != 0},
      stream(o.op.lane));
}

void CudaBackend::Impl::grouped(const Operation& o) {
  const auto [form, n, k, local, sources, segment, add] = o.call().sizes;
  grouped_products.run(
      {static_cast<int>(form), n, k, static_cast<int>(local), static_cast<int>(sources), segment, add != 0},
      segment > 0 ? nullptr : at<int>(o.reads.back()), at<Half>(o.reads[0]), at<Half>(o.reads[1]),
      at<Half>(o.writes[0]), stream(o.op.lane));
}

/// Rotary embedding, norms of heads, attention.
void CudaBackend::Impl::heads(const Operation& o) {
  const Call& call = o.call();
  const auto& s = call.sizes;
  const cudaStream_t on = stream(o.op.lane);
  if (call.routine == Routine::attention || call.routine == Routine::attention_backward) {
    const cuda::AttentionShape shape{s[0], s[1], s[2], s[3], s[4]};
    if (call.routine == Routine::attention)
      return attention.forward(shape, at<Half>(o.reads[0]), at<Half>(o.writes[0]), at<float>(o.writes[1]), on);
    return attention.backward(shape, at<Half>(o.reads[0]), at<Half>(o.reads[1]), at<float>(o.reads[2]),
                              at<Half>(o.reads[3]), at<Half>(o.writes[0]), on);
  }
  const cuda::HeadShape shape{s[0],
                              static_cast<int>(s[1]),
                              static_cast<int>(s[2]),
                              static_cast<int>(s[3]),
                              static_cast<int>(s[4]),
                              static_cast<float>(call.scalars[0]),
                              static_cast<const float*>(constants.of(4)) + s[5]};
  if (call.routine == Routine::rotary) return cuda::rotary(at<Half>(o.writes[0]), shape, s[6] != 0, on);
  if (call.routine == Routine::head_norm_rotary)
    return cuda::head_norm_rotary(at<Half>(o.reads[0]), at<Half>(o.reads[1]), at<Half>(o.reads[2]),
                                  at<Half>(o.writes[0]), shape, on);
  auto* partial =
      static_cast<float*>(scratch.of(static_cast<std::size_t>(cuda::norm_blocks * 2 * s[3]) * sizeof(float)));
  cuda::head_norm_rotary_backward(at<Half>(o.writes[0]), at<Half>(o.reads[1]), at<Half>(o.reads[2]),
                                  at<Half>(o.reads[3]), at<Half>(o.writes[1]), at<Half>(o.writes[2]), partial, shape,
                                  s[6] != 0, on);
}

/// Router, activation, movement of rows.
void CudaBackend::Impl::experts(const Operation& o) {
  const Call& call = o.call();
  const auto& s = call.sizes;
  const cudaStream_t on = stream(o.op.lane);
  if (call.routine == Routine::swiglu || call.routine == Routine::swiglu_backward) {
    const cuda::LiveRows rows{s[0], s[3] > 0 ? at<int>(o.reads.back()) : nullptr, static_cast<int>(s[3])};
    const bool back = call.routine == Routine::swiglu_backward;
    const float* weights = s[2] ? at<float>(o.reads[back ? 2 : 1]) : nullptr;
    if (!back) return cuda::swiglu(at<Half>(o.reads[0]), weights, at<Half>(o.writes[0]), rows, s[1], on);
    return cuda::swiglu_backward(at<Half>(o.reads[0]), at<Half>(o.reads[1]), weights, at<Half>(o.writes[0]),
                                 s[2] ? at<float>(o.writes[1]) : nullptr, rows, s[1], on);
  }
  if (call.routine == Routine::scatter_rows) {
    if (s[4])
      check(cudaMemsetAsync(o.writes[0].data, 0, static_cast<std::size_t>(s[3] * s[1]) * sizeof(Half), on),
            "clearing rows");
    return cuda::scatter_rows(at<Half>(o.reads[0]), at<int>(o.reads[1]), at<Half>(o.writes[0]), s[0], s[1],
                              static_cast<int>(s[2]), on);
  }
  if (call.routine == Routine::gather_rows)
    return cuda::gather_rows(at<Half>(o.reads[0]), at<int>(o.reads[1]), at<Half>(o.writes[0]), s[0], s[1],
                             static_cast<int>(s[2]), on);
  const cuda::RouterShape shape{s[0],
                                static_cast<int>(s[1]),
                                static_cast<int>(s[2]),
                                s[3],
                                s[4] != 0,
                                s[5],
                                static_cast<float>(call.scalars[0]),
                                static_cast<float>(call.scalars[1]),
                                static_cast<float>(call.scalars[2])};
  if (call.routine == Routine::route_backward)
    return cuda::route_backward(at<float>(o.reads[0]), at<int>(o.reads[1]), at<Half>(o.reads[2]), at<int>(o.reads[3]),
                                at<Half>(o.writes[0]), shape, on);
  void* words = scratch.of(cuda::route_scratch(shape));
  cuda::route(at<Half>(o.reads[0]), at<int>(o.writes[0]), at<float>(o.writes[1]), at<int>(o.writes[2]),
              at<float>(o.writes[3]), words, shape, on);
}

/// Embedding, norms, loss.
void CudaBackend::Impl::rows(const Operation& o) {
  const Call& call = o.call();
  const auto& s = call.sizes;
  const cudaStream_t on = stream(o.op.lane);
  const cuda::NormShape shape{s[0], s[1], static_cast<float>(call.scalars[0])};
  switch (call.routine) {
    case Routine::embedding:
      return cuda::embedding(at<std::int64_t>(o.reads[0]), at<Half>(o.reads[1]), at<Half>(o.writes[0]), s[0], s[1], on);
    case Routine::embedding_backward: {
      auto* words = static_cast<int*>(scratch.of(static_cast<std::size_t>(3 * s[2] + 1 + s[0]) * sizeof(int)));
      return cuda::embedding_backward(at<Half>(o.reads[0]), at<std::int64_t>(o.reads[1]), at<Half>(o.writes[0]), words,
                                      s[0], s[1], s[2], s[3] != 0, on);
    }
    case Routine::norm: {
      const bool branch = s[2] != 0;
      return cuda::norm(at<Half>(o.reads[0]), branch ? at<Half>(o.reads[1]) : nullptr,
                        at<Half>(o.reads[branch ? 2 : 1]), branch ? at<Half>(o.writes[0]) : nullptr,
                        at<Half>(o.writes[branch ? 1 : 0]), at<float>(o.writes[branch ? 2 : 1]), shape, on);
    }
    case Routine::norm_backward: {
      const std::size_t first = s[2] != 0 ? 2 : 1;
      auto* partial =
          static_cast<float*>(scratch.of(static_cast<std::size_t>(cuda::norm_blocks * s[1]) * sizeof(float)));
      return cuda::norm_backward(at<Half>(o.reads[0]), s[2] != 0 ? at<Half>(o.reads[1]) : nullptr,
                                 at<Half>(o.reads[first]), at<float>(o.reads[first + 1]), at<Half>(o.reads[first + 2]),
                                 at<Half>(o.writes[0]), at<Half>(o.writes[1]), partial, shape, s[3] != 0, on);
    }
    default:
      return cuda::cross_entropy(at<Half>(o.reads[0]), at<std::int64_t>(o.reads[1]), at<float>(o.writes[1]),
                                 at<float>(o.writes[2]), s[0], s[1], s[2] != 0, static_cast<float>(call.scalars[0]),
                                 on);
  }
}

/// Copies, sums, the optimizer.
void CudaBackend::Impl::flat(const Operation& o) {
  const Call& call = o.call();
  const std::int64_t n = call.sizes[0];
  const cudaStream_t on = stream(o.op.lane);
  const auto bytes = static_cast<std::size_t>(n * size_of(o.writes[0].dtype));
  switch (call.routine) {
    case Routine::copy:
      return check(cudaMemcpyAsync(o.writes[0].data, o.reads[0].data, bytes, cudaMemcpyDeviceToDevice, on), "copy");
    case Routine::fill_zero: return check(cudaMemsetAsync(o.writes[0].data, 0, bytes, on), "fill");
    case Routine::add: return cuda::add(at<Half>(o.reads[0]), at<Half>(o.reads[1]), at<Half>(o.writes[0]), n, on);
    case Routine::accumulate:
      return cuda::accumulate(at<Half>(o.reads[0]), call.sizes[2] == 2 ? at<Half>(o.reads[1]) : nullptr,
                              at<float>(o.writes[0]), call.sizes[3] != 0 ? at<float>(o.writes[1]) : nullptr, n,
                              call.sizes[1] != 0, static_cast<float>(call.scalars[0]), on);
    default: break;
  }
  const Hyperparameters& h = hyperparameters;
  const auto t = static_cast<double>(h.update);
  const cuda::AdamStep step{static_cast<float>(call.scalars[0]),
                            static_cast<float>(h.beta1),
                            static_cast<float>(h.beta2),
                            static_cast<float>(h.epsilon),
                            static_cast<float>(1 - h.learning_rate * h.weight_decay),
                            static_cast<float>(h.learning_rate / (1 - std::pow(h.beta1, t))),
                            static_cast<float>(1 / (1 - std::pow(h.beta2, t))),
                            call.sizes[2] != 0};
  cuda::adamw(at<float>(o.reads[0]), call.sizes[1] ? at<float>(o.writes[0]) : nullptr, at<float>(o.writes[1]),
              at<float>(o.writes[2]), at<Half>(o.writes[3]), at<float>(o.reads[4]), n, step, on);
}

void CudaBackend::Impl::run(const Operation& o) {
  const auto& s = o.call().sizes;
  switch (o.call().routine) {
    case Routine::none: CHECK(false, "a launch without a routine");
    case Routine::product:
      return products.run({s[0], s[1], s[2], s[3] != 0, s[4] != 0, s[5] != 0}, at<Half>(o.reads[0]),
                          at<Half>(o.reads[1]), at<Half>(o.writes[0]), stream(o.op.lane));
    case Routine::grouped_product: return grouped(o);
    case Routine::regroup: return regroup(o);
    case Routine::rotary:
    case Routine::head_norm_rotary:
    case Routine::head_norm_rotary_backward:
    case Routine::attention:
    case Routine::attention_backward: return heads(o);
    case Routine::swiglu:
    case Routine::swiglu_backward:
    case Routine::route:
    case Routine::route_backward:
    case Routine::scatter_rows:
    case Routine::gather_rows: return experts(o);
    case Routine::embedding:
    case Routine::embedding_backward:
    case Routine::norm:
    case Routine::norm_backward:
    case Routine::cross_entropy: return rows(o);
    case Routine::copy:
    case Routine::add:
    case Routine::fill_zero:
    case Routine::accumulate:
    case Routine::adamw: return flat(o);
  }
}

}  // namespace plimsoll
