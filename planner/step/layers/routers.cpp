// Routers (planner/step/layers/routers.hpp).  Source: the router classes of transformers 5.17; softmax routers by the
// allocator trace of a Mixtral step, the others assumed from the operations they are composed of.
#include "planner/step/layers/routers.hpp"

#include <string_view>

#include "planner/step/autograd/ops_routing.hpp"

namespace plimsoll {

RouterKind router_kind(const Scenario& scenario, const MoeSpec& spec) {
  using Scores = RouterKind::Scores;
  const std::string_view family = scenario.model.family;
  RouterKind kind;
  if (family == "gpt_oss") {
    kind.scores = Scores::softmax_of_chosen;
    kind.normalise = false;
  } else if (family == "deepseek_v2") {
    kind = {Scores::softmax, true, false, true, false};
  } else if (family == "minimax_m2") {
    kind.scores = Scores::sigmoid;
  } else if (spec.score_correction_bias) {  // DeepSeek-V3 and those built on it
    kind = {Scores::sigmoid, true, true, true, true};
  } else if (family == "qwen2_moe" || family == "olmoe") {
    kind.normalise = false;  // norm_topk_prob is false in these configurations
  }
  return kind;
}

namespace {

/// x W^T (+ b); with `fp32` on fp32 copies of both.
Variable logits_of(LayerContext& c, MoeModule& module, const Variable& input, bool fp32) {
  return call_module(c, module.router, input, [&](const Variable& x) {
    if (!fp32) {
      return ops::linear(c.g, x, *module.router.weight, module.router.bias,
                         {c.zero3_linear, true, "router logits", module.router.name});
    }
    return ops::linear_fp32(c.g, x, *module.router.weight, {c.zero3_linear, true, "router logits", module.router.name});
  });
}

/// What limiting the choice to groups of experts leaves named until the router returns.
struct GroupChoice {
  Tensor mask_by_expert, mask, best, scores, places;
};

/// Keeps only the experts of each token's best groups: the rest of the scores become -inf.  No gradient flows through the
/// choice.  Groups as DeepSeek-V3 states them; the tensors by group are small, and smaller still where there is one group.
Variable limit_to_groups(LayerContext& c, const Variable& scores, GroupChoice& names) {
  constexpr std::int64_t groups = 8, kept_groups = 4;
  Trace& trace = c.trace;
  const Dim n = c.tokens();
  const auto made = [&](const Shape& shape, DType dtype, const char* name) {
    Tensor tensor = trace.empty(shape, dtype, name);
    ops::launch(trace, KernelKind::small, {&scores}, tensor, name);
    return tensor;
  };
  {
    const Tensor two_best = made({n, {2 * groups}}, DType::fp32, "two best scores of each group");
    names.places = made({n, {2 * groups}}, DType::int64, "their experts");
    names.scores = made({n, {groups}}, DType::fp32, "scores of groups");
  }
  {
    const Tensor values = made({n, {kept_groups}}, DType::fp32, "scores of the best groups");
    names.best = made({n, {kept_groups}}, DType::int64, "best groups");
  }
  names.mask = made({n, {groups}}, DType::fp32, "group mask");
  names.mask_by_expert = made(scores.shape, DType::fp32, "group mask by expert");
  Tensor excluded;
  {
    const Tensor as_bool = made(scores.shape, DType::boolean, "group mask as bool");
    excluded = made(scores.shape, DType::boolean, "excluded experts");
  }
  return ops::masked_fill(c.g, scores, excluded, "scores of the best groups");
}

}  // namespace

RouterOutput run_router(LayerContext& c, MoeModule& module, const Variable& input) {
  Autograd& g = c.g;
  const Variable x = ops::view(g, input, input.shape);  // tokens in one dimension
  const RouterKind kind = router_kind(c.scenario, *module.spec);
  const Dim k{module.spec->top_k, Symbol::top_k};
  RouterOutput out;
  GroupChoice names;
  Variable choice;
  out.logits = logits_of(c, module, x, kind.fp32_product);
  if (kind.scores == RouterKind::Scores::softmax_of_chosen) {
    ops::TopK chosen = ops::top_k(g, out.logits, k, "chosen logits");
    out.weights = ops::softmax(g, chosen.values, out.logits.dtype, "routing weights");
    out.experts = std::move(chosen.indices);
    return out;
  }
  if (kind.scores == RouterKind::Scores::softmax) {
    Variable scores;
    {
      const Variable wide = ops::cast(g, out.logits, DType::fp32, "router logits in fp32");
      scores = ops::softmax(g, wide, DType::fp32, "router probabilities");
    }
    ops::TopK chosen = ops::top_k(g, scores, k, "chosen probabilities");
    out.weights = std::move(chosen.values);
    out.experts = std::move(chosen.indices);
  } else {
    const Variable wide = ops::cast(g, out.logits, DType::fp32, "router logits in fp32");
    const Variable scores = ops::sigmoid(g, wide, "router scores");
    {
      Scoped no_gradient(g.enabled, false);
      choice = ops::add_constant(g, scores, "scores for the choice");
      if (kind.groups) choice = limit_to_groups(c, choice, names);
      out.experts = ops::top_k(g, choice, k, "chosen scores").indices;
    }
    out.weights = ops::gather_last(g, scores, out.experts, "chosen scores");
  }
  if (kind.normalise) {
    Variable total = ops::sum_last(g, out.weights, "sum of chosen scores");
    if (kind.groups) total = ops::add_constant(g, total, "sum of chosen scores");
    out.weights = ops::divide_in_place(g, out.weights, total);
  }
  if (kind.scale) out.weights = ops::scale(g, out.weights, "scaled routing weights");
  if (!module.spec->scores_fp32) out.weights = ops::cast(g, out.weights, out.logits.dtype, "routing weights");
  return out;
}

RouterOutput run_autoep_router(LayerContext& c, MoeModule& module, const Variable& input,
                               std::vector<Variable>* router_logits) {
  RouterOutput out;
  call_module(c, module.autoep_router, input, [&](const Variable& x) {
    Autograd& g = c.g;
    const RouterKind kind = router_kind(c.scenario, *module.spec);
    const Dim k{module.spec->top_k, Symbol::top_k}, e{module.spec->experts, Symbol::experts};
    Tensor values;
    Variable scores = logits_of(c, module, x, false);
    if (router_logits && !g.recomputing) router_logits->push_back(scores);
    {
      Variable wide = ops::cast(g, scores, DType::fp32, "router logits in fp32");
      scores = kind.scores == RouterKind::Scores::sigmoid ? ops::sigmoid(g, wide, "router scores")
                                                          : ops::softmax(g, wide, DType::fp32, "router probabilities");
    }
    {
      Scoped no_gradient(g.enabled, false);
      GroupChoice names;
      Variable choice = scores;
      if (module.spec->score_correction_bias) choice = ops::add_constant(g, choice, "scores for the choice");
      if (kind.groups) choice = limit_to_groups(c, choice, names);
      ops::TopK chosen = ops::top_k(g, choice, k, "chosen scores");
      values = chosen.values.data();
      out.experts = std::move(chosen.indices);
    }
    out.weights = ops::gather_last(g, scores, out.experts, "weights of chosen experts");
    if (kind.normalise) {
      Variable total = ops::sum_last(g, out.weights, "sum of chosen scores");
      total = ops::add_constant(g, total, "sum of chosen scores");
      out.weights = ops::divide(g, out.weights, total, "normalised routing weights");
    }
    out.weights = ops::scale(g, out.weights, "scaled routing weights");
    out.counts = c.trace.empty({e}, DType::int32, "rows per expert");
    const Tensor ones = c.trace.empty(out.experts.shape, DType::int32, "ones");
    ops::launch(c.trace, KernelKind::small, {&out.experts, &ones}, out.counts, "rows per expert");
    return out.weights;
  });
  return out;
}

}  // namespace plimsoll
