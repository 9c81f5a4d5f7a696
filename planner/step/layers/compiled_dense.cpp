// A dense decoder layer that torch.compile makes one program of, forward and backward (planner/step/layers/compiled.hpp).
//
// Inductor orders a backward by what it takes and frees, and hands all gradients back at its end.  What it wrote for Llama
// layers, in this order: the MLP's products and their weight gradients; the gradient of the stream in the middle; attention,
// whose projections give only their input's gradient; then, in one kernel, both norms (the first one's input gradient and two
// sets of partial sums), for which the gradients that came out of gate and up, and all that both norms had kept, wait; and at
// last the weight gradients of o, v, k and q.  Results go where they may: o's product into q's memory, gate's gradient into
// up's, the input gradients of v and q into those of attention's output and of q, if they are as large.
//
// Source: the compiler's programs and the allocator traces of two layers (hidden 1536 and 5120) on an H200, PyTorch 2.11.
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "planner/step/autograd/ops_routing.hpp"
#include "planner/step/layers/attention.hpp"
#include "planner/step/layers/compiled.hpp"

namespace plimsoll {

namespace {

/// In the order in which the program takes its weights and hands their gradients back.
enum Weight : std::size_t { input_norm, q, k, v, o, post_norm, gate, up, down, weights };

/// What the running backward has made and not yet handed on.
struct Region {
  struct Product {
    Weight weight;
    Tensor dy, x;
  };
  std::array<const LinearModule*, weights> linear{};
  std::array<Parameter*, weights> parameter{};
  std::array<NodeRef, weights> leaf;
  std::array<Tensor, weights> gradient;
  std::vector<Product> late;     ///< weight gradients that come last
  std::vector<Tensor> held;      ///< what the last kernel reads
  std::vector<Tensor> incoming;  ///< the caller's, who lets go of it when the program has returned

  const Tensor& data(Weight w) const { return parameter[w]->data; }
  const char* role(Weight w) const { return linear[w]->name; }
};
using RegionRef = std::shared_ptr<Region>;

RegionRef region_of(LayerContext& c, DecoderLayerModule& module) {
  auto region = std::make_shared<Region>();
  AttentionModule& a = module.attention;
  region->linear = {nullptr, &a.q, &a.k, &a.v, &a.o, nullptr, &module.mlp.gate, &module.mlp.up, &module.mlp.down};
  for (std::size_t w = 0; w < weights; ++w) {
    const NormModule& norm = w == input_norm ? module.input_norm : module.post_attention_norm;
    region->parameter[w] = region->linear[w] ? region->linear[w]->weight : norm.weight;
    region->leaf[w] = c.g.leaf(*region->parameter[w]).grad_fn;
  }
  return region;
}

/// What the program keeps to itself has rows of whole 128 bytes, if they are longer than 1024 elements (comprehensive_padding).
Dim padded(Dim width, DType dtype) {
  const std::int64_t multiple = 128 / size_of(dtype);
  if (width.size > 1024) width.size = round_up(width.size, multiple);
  return width;
}

Tensor product(LayerContext& c, const Region& region, Weight w, const Tensor& x, const char* name, Tensor into = {}) {
  const Shape& weight = region.parameter[w]->shape;
  Shape shape{c.tokens()};
  shape.push(padded(weight.dim(0), x.dtype));
  Tensor y = into ? std::move(into) : c.trace.empty(shape, x.dtype, name);
  y.shape = shape;
  c.g.take_gemm_workspace();
  c.trace.compute(Kernel::gemm(c.tokens().size, weight.dim(0).size, weight.dim(1).size, x.dtype), {&x, &region.data(w)},
                  {&y}, region.role(w));
  return y;
}

void weight_product(Autograd& g, Region& region, Weight w, const Tensor& dy, const Tensor& x) {
  region.gradient[w] = ops::weight_gradient(g, dy, x, region.parameter[w]->shape, region.role(w));
}

Tensor input_product(Autograd& g, const Region& region, Weight w, const Tensor& dy, const Shape& x, Tensor into = {}) {
  return ops::input_gradient(g, dy, region.data(w), x, region.role(w), std::move(into));
}

/// `memory` if it has room for exactly `bytes`; else nothing is left of it.
Tensor over(Tensor& memory, Bytes bytes) {
  Tensor taken = std::exchange(memory, {});
  return taken.bytes() == bytes ? std::move(taken) : Tensor{};
}

struct Rows {
  Tensor output, rstd;
};
Rows norm_rows(LayerContext& c, const Region& region, Weight w, const Tensor& x, const Tensor* branch) {
  Rows rows;
  rows.rstd = c.trace.empty({c.tokens()}, DType::fp32, "norm rstd");
  rows.output = c.trace.empty(x.shape, x.dtype, "norm output");
  const Tensor absent;
  launch_fused(c.trace, defined({&x, branch ? branch : &absent, &region.data(w)}), {&rows.output, &rows.rstd},
               "fused norm");
  return rows;
}

/// Sums both norms' weight gradients in the pass that makes the layer's input gradient, then makes what was left for last.
void finish(Autograd& g, const RegionRef& region, BackwardCall& call) {
  Trace& t = call.trace;
  Tensor dx = t.empty(call.saved(0).shape, call.saved(0).dtype, "stream gradient");
  {
    std::vector<const Tensor*> reads =
        defined({&call.grads[0], &call.grads[1], &call.grads[2], &call.grads[3], &call.saved(0), &call.saved(1)});
    for (const Tensor& tensor : region->held) reads.push_back(&tensor);
    const std::int64_t rows = dx.numel() / dx.shape.last().size;
    const NormSums sums(t, region->data(input_norm).shape, rows, 2);
    launch_fused(t, reads, {&dx, &sums.partial}, "norms backward");
    for (const Weight w : {post_norm, input_norm}) region->gradient[w] = sums.sum(t, region->data(w).dtype);
  }
  for (std::size_t i = 1; i < 4; ++i) call.grads[i].reset();
  region->held.clear();
  call.drop(0);
  call.drop(1);
  call.grads[0].reset();
  for (Region::Product& late : region->late) {
    const Region::Product product = std::move(late);
    weight_product(g, *region, product.weight, product.dy, product.x);
  }
  region->late.clear();
  region->incoming.clear();
  call.out[0] = std::move(dx);
  for (std::size_t w = 0; w < weights; ++w) {
    if (region->leaf[w]) call.of_leaves.emplace_back(region->leaf[w], std::move(region->gradient[w]));
  }
}

/// The stream and its norm, the latter once for each projection.
NormedStream first_norm(LayerContext& c, const RegionRef& region, const Variable& x) {
  NodeRef node = c.g.make_node({&x}, [region, &g = c.g](BackwardCall& call) { finish(g, region, call); });
  Rows rows = norm_rows(c, *region, input_norm, x, nullptr);
  c.g.save(node, x.data());
  c.g.save(node, rows.rstd);
  NormedStream result;
  result.stream = ops::output_of(x.data(), node, 0);
  for (std::uint8_t i = 0; i < 3; ++i)
    result.normed[i] = ops::output_of(rows.output, node, static_cast<std::uint8_t>(i + 1));
  return result;
}

/// The stream between the branches is never stored: what needs it adds `stream` and `branch` again.
NormedStream second_norm(LayerContext& c, const RegionRef& region, const Variable& stream, const Variable& branch) {
  NodeRef node = c.g.make_node({&stream, &branch}, [region](BackwardCall& call) {
    const Tensor &to_stream = call.grads[0], &branch_rows = call.saved(0), &rstd = call.saved(1);
    Tensor dx = call.trace.empty(branch_rows.shape, branch_rows.dtype, "stream gradient");
    launch_fused(call.trace,
                 defined({&to_stream, &call.grads[1], &call.grads[2], &branch_rows, &branch_rows, &rstd,
                          &region->data(post_norm)}),
                 {&dx}, "norm backward");
    region->incoming.push_back(to_stream);
    for (const Tensor& waits : {call.grads[1], call.grads[2], branch_rows, rstd}) region->held.push_back(waits);
    call.out[1] = dx;
    call.out[0] = std::move(dx);
  });
  Rows rows = norm_rows(c, *region, post_norm, stream, &branch);
  c.g.save(node, branch.data());
  c.g.save(node, rows.rstd);
  NormedStream result;
  result.stream = ops::output_of(branch.data(), node, 0);
  for (std::uint8_t i = 0; i < 2; ++i)
    result.normed[i] = ops::output_of(rows.output, node, static_cast<std::uint8_t>(i + 1));
  return result;
}

/// Projections, rotary embedding and attention; leaves in `spare` memory that is free when the output has been made.
Variable attend_compiled(LayerContext& c, const RegionRef& region, const AttentionModule& module,
                         const std::array<Variable, 3>& normed, const RotaryTables& tables, Tensor& spare) {
  const AttentionSpec& spec = *module.spec;
  const ops::AttentionShape shape{c.batch(), c.sequence(), spec.q_heads, spec.kv_heads, spec.head_dim, spec.head_dim};
  const Tensor cos = tables.cos.data(), sin = tables.sin.data();
  const Shape in = normed[0].shape;
  NodeRef node = c.g.make_node({&normed[0], &normed[1], &normed[2]}, [=, &g = c.g](BackwardCall& call) {
    Trace& t = call.trace;
    auto [dq, dk, dv] = ops::attention_backward(t, call.grads[0], call.saved(1), call.saved(2), call.saved(3),
                                                call.saved(4), call.saved(5), shape);
    for (const std::size_t kept : {1U, 2U, 5U, 6U, 7U, 3U}) call.drop(kept);
    const auto turn_back = [&](Tensor& gradient) {
      Tensor turned = t.empty(gradient.shape, gradient.dtype, "gradient before rotary");
      launch_fused(t, {&gradient, &cos, &sin}, {&turned}, "rotary backward");
      return turned;
    };
    const Bytes size = call.saved(0).bytes();
    Tensor of_output = call.grads[0];
    call.grads[0].reset();
    call.out[2] = input_product(g, *region, v, dv, in, over(of_output, size));
    Tensor before_k = turn_back(dk);
    call.out[1] = input_product(g, *region, k, before_k, in, over(dk, size));
    Tensor before_q = turn_back(dq);
    call.out[0] = input_product(g, *region, q, before_q, in, over(dq, size));
    region->late.push_back({v, std::move(dv), call.saved(0)});
    region->late.push_back({k, std::move(before_k), call.saved(0)});
    region->late.push_back({q, std::move(before_q), call.saved(0)});
  });
  Tensor q_raw = product(c, *region, q, normed[0], "q projection");
  Tensor k_raw = product(c, *region, k, normed[1], "k projection");
  const Tensor values = product(c, *region, v, normed[2], "v projection");
  const auto turn = [&](const Tensor& x, Tensor into) {
    Tensor rotated = into ? std::move(into) : c.trace.empty(x.shape, x.dtype, "rotated");
    launch_fused(c.trace, {&x, &cos, &sin}, {&rotated}, "fused rotary");
    return rotated;
  };
  const Tensor rotated_q = turn(q_raw, {});
  // With as many key heads as query heads k is turned into q's memory, and o's product finds k's.
  const bool equal = k_raw.bytes() == q_raw.bytes();
  const Tensor rotated_k = turn(k_raw, equal ? std::exchange(q_raw, {}) : Tensor{});
  spare = std::exchange(equal ? k_raw : q_raw, {});
  k_raw.reset();
  ops::Attended attended = ops::attention_forward(c.trace, rotated_q, rotated_k, values, shape);
  for (const Tensor* kept : {static_cast<const Tensor*>(&normed[0]), &rotated_q, &rotated_k, &values,
                             static_cast<const Tensor*>(&attended.out), static_cast<const Tensor*>(&attended.lse),
                             static_cast<const Tensor*>(&attended.seed), static_cast<const Tensor*>(&attended.offset)})
    c.g.save(node, *kept);
  return ops::output_of(std::move(attended.out), std::move(node));
}

Variable output_projection(LayerContext& c, const RegionRef& region, const Variable& mixed, Tensor spare) {
  NodeRef node = c.g.make_node({&mixed}, [region, &g = c.g](BackwardCall& call) {
    call.out[0] = input_product(g, *region, o, call.grads[0], call.saved(0).shape);
    region->late.push_back({o, call.grads[0], call.saved(0)});
  });
  c.g.save(node, mixed.data());
  const Bytes size = Elements(c.tokens().size * c.hidden().size) * mixed.dtype;
  Tensor y = product(c, *region, o, mixed, "attention projection", over(spare, size));
  return ops::output_of(std::move(y), std::move(node));
}

Variable gated_mlp(LayerContext& c, const RegionRef& region, const std::array<Variable, 3>& normed) {
  NodeRef node = c.g.make_node({&normed[0], &normed[1]}, [region, &g = c.g](BackwardCall& call) {
    const Tensor& dy = call.grads[0];
    const Shape wide = call.saved(3).shape, narrow = call.saved(0).shape;
    weight_product(g, *region, down, dy, call.saved(3));
    call.drop(3);
    Tensor d_product = input_product(g, *region, down, dy, wide);
    Tensor d_up = call.trace.empty(wide, dy.dtype, "gradient of up");
    Tensor d_gate = call.saved(2);
    launch_fused(call.trace, {&d_product, &call.saved(1), &d_gate}, {&d_up, &d_gate}, "swiglu backward");
    d_product.reset();
    call.drop(1);
    call.drop(2);
    weight_product(g, *region, up, d_up, call.saved(0));
    call.out[1] = input_product(g, *region, up, d_up, narrow);
    d_up.reset();
    weight_product(g, *region, gate, d_gate, call.saved(0));
    call.drop(0);
    call.out[0] = input_product(g, *region, gate, d_gate, narrow);
  });
  const Tensor gated = product(c, *region, gate, normed[0], "mlp gate");
  const Tensor wide = product(c, *region, up, normed[1], "mlp up");
  const Tensor activated = c.trace.empty(gated.shape, gated.dtype, "silu(gate) up");
  launch_fused(c.trace, {&gated, &wide}, {&activated}, "swiglu");
  for (const Tensor* kept : {static_cast<const Tensor*>(&normed[0]), &gated, &wide, &activated}) c.g.save(node, *kept);
  Tensor y = product(c, *region, down, activated, "mlp output");
  return ops::output_of(std::move(y), std::move(node));
}

/// x + branch + out, over the memory of `out`.
Variable sum_up(LayerContext& c, const Variable& x, const Variable& stream, const Variable& out) {
  NodeRef node = c.g.make_node({&stream, &out}, [](BackwardCall& call) {
    call.out[1] = call.grads[0];
    call.out[0] = std::move(call.grads[0]);
  });
  launch_fused(c.trace, {&x, &stream, &out}, {&out}, "residual after mlp");
  return ops::output_of(out.data(), std::move(node));
}

}  // namespace

bool is_one_program(const LayerContext& c, const DecoderLayerModule& module) {
  const AttentionSpec& spec = *module.attention.spec;
  return !module.is_moe && !c.g.autocast && spec.kind == AttentionSpec::Kind::grouped_query &&
         spec.qk_norm == AttentionSpec::QkNorm::none && !module.attention.sinks &&
         c.scenario.plan.attention == AttentionImplementation::sdpa && !module.attention.q.bias &&
         !module.attention.o.bias && !module.mlp.gate.bias && !module.input_norm.bias &&
         rotary_form(c.scenario) == RotaryForm::halves;
}

Variable compiled_dense_layer(LayerContext& c, DecoderLayerModule& module, const Variable& x,
                              const RotaryTables& tables) {
  const RegionRef region = region_of(c, module);
  NormedStream middle;
  Variable attended;
  {
    NormedStream first = first_norm(c, region, x);
    Tensor spare;
    const Variable mixed = attend_compiled(c, region, module.attention, first.normed, tables, spare);
    attended = output_projection(c, region, mixed, std::move(spare));
    middle = second_norm(c, region, first.stream, attended);
  }
  const Variable out = gated_mlp(c, region, middle.normed);
  return sum_up(c, x, middle.stream, out);
}

}  // namespace plimsoll
