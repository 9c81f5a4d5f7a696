// Gates of native DeepSpeed MoE (planner/step/layers/native_gate.hpp).  N tokens, E experts, k routes; masks hold 8 N E bytes
// (int64), probabilities 4 N E.
// Source: deepspeed 0.19.8, moe/sharded_moe.py (top1gating, top2gating, topkgating with sparse routes); top-2 also by the
// allocator trace of a real step.
#include "planner/step/layers/native_gate.hpp"

#include "planner/step/autograd/ops_routing.hpp"

namespace plimsoll {

namespace {

class Gate {
 public:
  Gate(LayerContext& c, MoeModule& module, const Variable& x)
      : c_(c),
        g_(c.g),
        module_(module),
        input_(c.g.autocast ? x : ops::cast(c.g, x, DType::fp32, "gate input in fp32")),
        logits_(ops::linear_fp32(c.g, input_, *module.router.weight,
                                 {c.zero3_linear, true, "gate logits", module.router.name})),
        n_(c.tokens()),
        k_{module.spec->top_k, Symbol::top_k},
        by_expert_{n_, {module.spec->experts, Symbol::experts}} {}

  GateOutput top1();
  GateOutput top2();
  GateOutput top_k();

  /// The balance loss and the counts stay with the module until its next call.
  void hand_over() {
    mean_ = {};
    input_ = {};
    logits_ = {};
    module_.balance_loss.grad_fn = {};
    module_.balance_loss = std::move(balance_loss_);
    module_.expert_counts = std::move(expert_counts_);
  }

 private:
  /// A tensor made by a pointwise kernel from `from`.
  Tensor made(const Shape& shape, DType dtype, const char* name, std::initializer_list<const Tensor*> from) {
    Tensor tensor = c_.trace.empty(shape, dtype, name);
    ops::launch(c_.trace, KernelKind::vectorized, from, tensor, name);
    return tensor;
  }
  Tensor mask(const char* name, const Tensor& from) { return made(by_expert_, DType::int64, name, {&from}); }
  Tensor reduced(const Tensor& from, const Shape& shape, DType dtype, const char* name) {
    Tensor tensor = c_.trace.empty(shape, dtype, name);
    c_.trace.compute(Kernel::pointwise(KernelKind::reduce_last, from.dtype, from.numel(), from.bytes()), {&from},
                     {&tensor}, name);
    return tensor;
  }
  /// cumsum(mask, 0) - 1: one block column walks the tokens.
  Tensor positions(const Tensor& of) {
    const Tensor sums = c_.trace.empty(by_expert_, DType::int64, "running counts");
    if (of.dtype == DType::boolean) mask("mask in 64 bits", of);
    c_.trace.compute(Kernel::pointwise(KernelKind::token_cumsum, DType::int64, n_.size, sums.bytes() * 2), {&of},
                     {&sums}, "gate cumsum");
    return mask("locations", sums);
  }
  /// Sum over experts of locations times mask.
  Tensor chosen_location(const Tensor& locations, const Tensor& of) {
    const Tensor product = made(by_expert_, DType::int64, "masked locations", {&locations, &of});
    return reduced(product, {n_}, DType::int64, "location");
  }
  Tensor tokens_where(const Tensor& chosen, const Tensor& indices) {
    Tensor evicted;
    const Tensor kept = reduced(chosen, {n_}, DType::boolean, "kept tokens");
    evicted = made({n_}, DType::int64, "evicted tokens", {});
    return made({n_}, DType::int64, "expert of each token", {&kept, &indices, &evicted});
  }
  Tensor narrow_stack(std::initializer_list<const Tensor*> routes, const char* name) {
    const Tensor stacked = made({k_, n_}, DType::int64, name, routes);
    return made({k_, n_}, DType::int32, name, {&stacked});
  }
  Tensor random_priority(const Tensor& of);
  /// What an expert keeps: at most its capacity of tokens.
  Shape kept_shape() const {
    const RoutedRows& rows = c_.routing[static_cast<std::size_t>(module_.index)];
    return {{std::min(rows.capacity, n_.size), Symbol::capacity}, by_expert_.last()};
  }
  Tensor fullest_tokens(const Tensor& priority, DType dtype) {
    const Tensor values = made(kept_shape(), dtype, "kept priorities", {&priority});
    return made(kept_shape(), DType::int64, "kept tokens", {&values});
  }
  void balance(const Variable& gates, const Tensor& of, std::int64_t numbers);
  void count(const Tensor& of);
  /// Without dropping, the largest count of the group's ranks is the capacity; the host reads it.
  void agree_on_capacity();
  Variable masked_weight(const Variable& gates, const Tensor& mask_float);
  Variable normalised(const Variable& weight, const Variable& total);

  LayerContext& c_;
  Autograd& g_;
  MoeModule& module_;
  Variable input_, logits_, mean_, balance_loss_;
  Tensor expert_counts_;
  Dim n_, k_;
  Shape by_expert_;
};

// l_aux = mean probability x share of tokens, by expert; it is returned and never enters the loss.
void Gate::balance(const Variable& gates, const Tensor& of, std::int64_t numbers) {
  const Dim e = by_expert_.last();
  mean_ = ops::sum_rows(g_, gates, "mean probability");
  Tensor share;
  {
    const Tensor wide = made(by_expert_, DType::fp32, "mask in fp32", {&of});
    share = reduced(wide, {e}, DType::fp32, "share of tokens");
  }
  Variable loss;
  {
    const Variable product = ops::mul(g_, mean_, Variable{share}, "balance loss", KernelKind::small);
    loss = ops::sum_all(g_, product, "balance loss");
  }
  for (std::int64_t i = 0; i < numbers; ++i) loss = ops::scale(g_, loss, "balance loss");
  balance_loss_ = std::move(loss);
}

void Gate::count(const Tensor& of) {
  expert_counts_ = reduced(of, {by_expert_.last()}, DType::int64, "tokens per expert");
  if (of.dtype == DType::boolean) mask("mask in 64 bits", of);
}

void Gate::agree_on_capacity() {
  if (c_.scenario.plan.moe.drop_tokens) return;
  const Tensor most = reduced(expert_counts_, {}, DType::int64, "largest count");
  if (c_.scenario.plan.expert_parallel > 1) {
    c_.trace.collective({CollectiveKind::all_reduce, DType::int64, c_.expert_group, most.bytes(), most.bytes()},
                        {&most}, {&most}, "capacity");
  }
  c_.trace.record(HostSync{}, Lane::host, {&most}, {}, "capacity");
}

// einsum("se,se->s"): a batched product that keeps the mask; its result is a view.
Variable Gate::masked_weight(const Variable& gates, const Tensor& mask_float) {
  const Shape shape = gates.shape;
  NodeRef node = g_.make_node({&gates}, [shape](BackwardCall& call) {
    const Tensor kept = call.saved(0);
    call.out[0] = call.trace.empty(shape, DType::fp32, "gradient of gate probabilities");
    call.out[0].view = true;
    ops::launch(call.trace, KernelKind::vectorized, {&call.grads[0], &kept}, call.out[0], "einsum backward");
  });
  g_.save(node, mask_float);
  Tensor result = c_.trace.empty({n_}, DType::fp32, "gate weight");
  ops::launch(c_.trace, KernelKind::reduce_last, {&gates, &mask_float}, result, "einsum");
  return ops::output_of(std::move(result), std::move(node));
}

// weight /= total on a view: backward rebuilds the base's gradient (zeros, a copy, a clone) before it divides.
Variable Gate::normalised(const Variable& weight, const Variable& total) {
  const Shape shape = weight.shape;
  NodeRef node = g_.make_node({&weight, &total}, [shape](BackwardCall& call) {
    const auto step = [&](const char* name, const Tensor& from) {
      Tensor tensor = call.trace.empty(shape, DType::fp32, name);
      ops::launch(call.trace, KernelKind::small, {&from, &call.saved(0), &call.saved(1)}, tensor, name);
      return tensor;
    };
    const Tensor rebuilt = step("gradient of a view", call.grads[0]);
    call.grads[0] = {};
    Tensor base = step("gradient of the base", rebuilt);
    {
      Tensor quotient;
      const Tensor clone = step("gradient of the slice", rebuilt);
      {
        const Tensor negated = step("negated gradient", clone), ratio = step("ratio", clone);
        const Tensor again = step("ratio over divisor", ratio);
        call.out[1] = step("gradient of a divisor", again);
      }
      quotient = step("gradient of a dividend", clone);
    }
    call.out[0] = std::move(base);
  });
  g_.save(node, total);
  if (node) {
    const Tensor old = made(shape, DType::fp32, "weights before division", {&weight});
    g_.save(node, old);
  }
  ops::launch(c_.trace, KernelKind::small, {&weight, &total}, weight, "div_");
  return ops::output_of(weight.data(), std::move(node));
}

GateOutput Gate::top1() {
  GateOutput out;
  Variable gates, weight;
  Tensor location, locations, limit, top, random, mask1, indices;
  gates = ops::softmax(g_, logits_, DType::fp32, "gate probabilities");
  indices = reduced(gates, {n_}, DType::int64, "first expert");
  mask1 = mask("mask of first experts", indices);
  count(mask1);
  agree_on_capacity();
  balance(gates, mask1, 1);
  random = random_priority(mask1);
  top = fullest_tokens(random, DType::fp32);
  {
    Tensor kept;
    {
      const Tensor zeros = mask("kept mask", top);
      kept = mask("mask of kept tokens", zeros);
    }
    mask1 = std::move(kept);
  }
  {
    Tensor product;
    {
      const Tensor sum = reduced(mask1, {n_}, DType::int64, "kept tokens");
      product = made({n_}, DType::int64, "kept tokens", {&sum});
    }
    limit = made({n_}, DType::int64, "kept tokens", {&product});
  }
  indices = made({n_}, DType::int64, "expert of each token", {&indices, &limit});
  locations = positions(mask1);
  {
    const Variable masked = ops::mul(g_, gates, Variable{mask1}, "masked probabilities", KernelKind::mixed_mul);
    const Variable sum = ops::sum_last(g_, masked, "gate weight");
    weight = ops::view(g_, sum, {n_});
  }
  location = chosen_location(locations, mask1);
  out.experts = made({k_, n_}, DType::int32, "expert of each route", {&indices});
  out.slots = made({k_, n_}, DType::int32, "slot of each route", {&location});
  out.weights = ops::view(g_, weight, {k_, n_});
  indices = {};
  return out;
}

// mask * (low + (high - low) rand): where an expert is full, random tokens stay.
Tensor Gate::random_priority(const Tensor& of) {
  Tensor shifted;
  {
    const Tensor uniform = made(by_expert_, DType::fp32, "random numbers", {});
    Tensor scaled;
    {
      const Tensor range = made({}, DType::fp32, "range", {});
      scaled = made(by_expert_, DType::fp32, "random numbers", {&uniform, &range});
    }
    shifted = made(by_expert_, DType::fp32, "random numbers", {&scaled});
  }
  return made(by_expert_, DType::fp32, "random priority", {&of, &shifted});
}

// Gumbel noise: -log(-log(u)) from bounded random numbers, step by step.
GateOutput Gate::top2() {
  GateOutput out;
  const auto noise = [&] {
    const auto step = [&](const Tensor& from) { return made(by_expert_, DType::fp32, "gumbel noise", {&from}); };
    Tensor a = made(by_expert_, DType::fp32, "random numbers", {});
    Tensor b, d;
    {
      const Tensor limit = made({}, DType::fp32, "smallest number", {});
      b = step(a);
    }
    d = step(b);
    b = {};
    a = {};
    a = step(d);
    d = {};
    b = step(a);
    d = step(b);
    b = {};
    a = {};
    a = step(d);
    d = {};
    b = step(a);
    d = step(b);
    b = {};
    a = {};
    ops::launch(c_.trace, KernelKind::vectorized, {&d}, logits_, "logits plus noise");
  };
  Variable weight2, weight1;
  Tensor float2, float1, location2, location1, locations2, locations1, mask2, indices2;
  Variable except;
  Tensor mask1, indices1;
  const Variable gates = ops::softmax(g_, logits_, DType::fp32, "gate probabilities");
  indices1 = reduced(gates, {n_}, DType::int64, "first expert");
  mask1 = mask("mask of first experts", indices1);
  noise();
  {
    const Tensor first = made(by_expert_, DType::boolean, "first experts", {&mask1});
    except = ops::masked_fill(g_, logits_, first, "logits without the first expert");
  }
  indices2 = reduced(except, {n_}, DType::int64, "second expert");
  mask2 = mask("mask of second experts", indices2);
  locations1 = positions(mask1);
  locations2 = positions(mask2);
  {
    const Tensor offset = reduced(mask1, {by_expert_.last()}, DType::int64, "tokens of first experts");
    ops::launch(c_.trace, KernelKind::vectorized, {&offset}, locations2, "locations of second experts");
  }
  balance(gates, mask1, 2);
  {
    const Tensor both = mask("mask of both experts", mask1);
    count(both);
  }
  agree_on_capacity();
  if (c_.scenario.plan.moe.drop_tokens) {
    for (Tensor* each : {&mask1, &mask2}) {
      const Tensor fits = made(by_expert_, DType::boolean, "within capacity", {each});
      ops::launch(c_.trace, KernelKind::vectorized, {&fits}, *each, "drop tokens");
    }
  }
  location1 = chosen_location(locations1, mask1);
  location2 = chosen_location(locations2, mask2);
  float1 = made(by_expert_, DType::fp32, "first mask in fp32", {&mask1});
  float2 = made(by_expert_, DType::fp32, "second mask in fp32", {&mask2});
  weight1 = masked_weight(gates, float1);
  weight2 = masked_weight(gates, float2);
  {
    const Variable first = ops::view(g_, weight1, {n_}), second = ops::view(g_, weight2, {n_});
    const Variable sum = ops::add(g_, first, second, "sum of gate weights", KernelKind::small);
    const Variable total = ops::clamp(g_, sum, 1, "sum of gate weights, at least eps");
    weight1 = normalised(weight1, total);
    weight2 = normalised(weight2, total);
  }
  indices1 = tokens_where(mask1, indices1);
  indices2 = tokens_where(mask2, indices2);
  out.experts = narrow_stack({&indices1, &indices2}, "expert of each route");
  out.slots = narrow_stack({&location1, &location2}, "slot of each route");
  out.weights = ops::stack(g_, weight1, weight2, {k_, n_}, "gate weights by route");
  return out;
}

GateOutput Gate::top_k() {
  GateOutput out;
  Variable route_weights;
  Tensor slots, experts, kept, fits, top, masked_values;
  Variable weights;
  Tensor locations, mask_k;
  ops::TopK chosen;
  const Variable gates = ops::softmax(g_, logits_, DType::fp32, "gate probabilities");
  chosen = ops::top_k(g_, gates, k_, "chosen probabilities");
  mask_k = made(by_expert_, DType::boolean, "mask of chosen experts", {&chosen.indices});
  count(mask_k);
  balance(gates, mask_k, 3);
  agree_on_capacity();
  ops::TopK kept_tokens;
  if (c_.scenario.plan.moe.drop_tokens) {  // the least probable tokens of a full expert go first
    {
      const Tensor zeros = made(by_expert_, DType::fp32, "zeros", {});
      masked_values = made(by_expert_, DType::fp32, "chosen probabilities by expert", {&zeros, &chosen.values});
    }
    kept_tokens.values = Variable{made(kept_shape(), DType::fp32, "kept probabilities", {&masked_values})};
    kept_tokens.indices = made(kept_shape(), DType::int64, "kept tokens", {&masked_values});
    fits = made(by_expert_, DType::boolean, "within capacity", {&kept_tokens.indices});
    ops::launch(c_.trace, KernelKind::vectorized, {&fits}, mask_k, "drop tokens");
  }
  locations = positions(mask_k);
  {
    const Variable masked = ops::mul(g_, gates, Variable{mask_k}, "masked probabilities", KernelKind::mixed_mul);
    const Variable sum = ops::sum_last(g_, masked, "sum of gate weights");
    const Variable total = ops::clamp(g_, sum, 1, "sum of gate weights, at least eps");
    weights = ops::divide(g_, masked, total, "normalised probabilities");
  }
  kept = made({n_, k_}, DType::boolean, "kept routes", {&mask_k, &chosen.indices});
  {
    const Tensor evicted = made({n_, k_}, DType::int64, "evicted routes", {});
    experts = made({n_, k_}, DType::int64, "expert of each route", {&kept, &chosen.indices, &evicted});
  }
  {
    const Tensor all = made({n_, k_}, DType::int64, "slot of each route", {&locations, &chosen.indices});
    slots = made({n_, k_}, DType::int64, "slot of each kept route", {&all, &kept});
  }
  route_weights = ops::gather_last(g_, weights, chosen.indices, "weight of each route");
  out.experts = narrow_stack({&experts}, "expert of each route");
  out.slots = narrow_stack({&slots}, "slot of each route");
  out.weights = ops::reordered(g_, route_weights, {k_, n_}, "gate weights by route");
  chosen.values = {};
  locations = {};
  masked_values = {};
  kept_tokens = {};
  return out;
}

}  // namespace

GateOutput run_native_gate(LayerContext& c, MoeModule& module, const Variable& input) {
  GateOutput out;
  call_module(c, module.router, input, [&](const Variable& x) {
    Gate gate(c, module, x);
    out = module.spec->top_k == 1 ? gate.top1() : module.spec->top_k == 2 ? gate.top2() : gate.top_k();
    gate.hand_over();
    return out.weights;
  });
  return out;
}

}  // namespace plimsoll
