// Which mixtures of experts run?  Expert parallelism of ep ranks: groups of ep consecutive ranks hold the experts, and
// edp = world / ep ranks hold the same ones, so ep divides both the number of experts and the number of ranks (DeepSpeed's
// utils/groups.py and moe/layer.py assert it).  Which implementation goes with which engine, stage and model family.
#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "planner/base/format.hpp"
#include "planner/spec/deepspeed_families.hpp"
#include "planner/spec/ds_batch.hpp"
#include "planner/spec/legality_rules.hpp"

namespace plimsoll {
namespace {

constexpr Severity error = Severity::error;
using enum MoeImplementation;

bool uses(const RuleInput& in, MoeImplementation implementation) {
  return in.plan.moe.implementation == implementation;
}
bool hf_experts(const RuleInput& in) { return uses(in, grouped) || uses(in, loop); }

/// Where an engine has no expert parallelism, that is what is wrong with any, and its size does not matter.
bool has_expert_parallelism(const RuleInput& in) {
  const bool knows_it = in.plan.engine == Engine::deepspeed || in.plan.engine == Engine::plimsoll;
  return knows_it && in.plan.expert_parallel > 1;
}

/// Sizes of expert parallelism that divide the ranks and every layer's experts.
std::string legal_expert_parallel(const RuleInput& in) {
  std::int64_t common = in.plan.world_size;
  const std::vector<std::int64_t> counts = expert_counts(in);
  for (const std::int64_t experts : counts) common = std::gcd(common, experts);
  if (counts.empty()) return fmt::format("divisors of {}: {}", in.plan.world_size, divisors_in_words(common));
  std::string experts;
  for (const std::int64_t count : counts) experts += fmt::format("{}{}", experts.empty() ? "" : ", ", count);
  return fmt::format("divisors of {} that fit {}: {}", experts, counted(in.plan.world_size, "data-parallel rank"),
                     divisors_in_words(common));
}

/// Points at the model's number of experts.
void note_experts(const RuleInput& in, Diagnostic& d, std::int64_t experts) {
  if (uses(in, native)) {
    d.notes.push_back(
        {place_of(in.plan, "/moe/num_experts"), fmt::format("{} is {} here", key(in, "/moe/num_experts"), experts)});
    return;
  }
  const auto place = in.model->places.find("experts");
  if (place != in.model->places.end())
    d.notes.push_back({place->second, fmt::format("{} is {} here", place->second.pointer, experts)});
}

std::int64_t undivided_experts(const RuleInput& in) {
  for (const std::int64_t experts : expert_counts(in))
    if (experts % in.plan.expert_parallel != 0) return experts;
  return 0;
}

constexpr Rule expert_parallelism[] = {
    {"plan.expert.world", error, "deepspeed, plimsoll", "any", "utils/groups.py: assertion",
     [](const RuleInput& in) {
       return has_expert_parallelism(in) && in.plan.world_size % in.plan.expert_parallel != 0;
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/expert_parallel",
           fmt::format("{} is {}, which does not divide {}", key(in, "/expert_parallel"), in.plan.expert_parallel,
                       counted(in.plan.world_size, "rank")),
           legal_expert_parallel(in));
     }},
    {"plan.expert.divides", error, "deepspeed, plimsoll", "any", "moe/layer.py: assertion num_experts % ep_size == 0",
     [](const RuleInput& in) { return has_expert_parallelism(in) && undivided_experts(in) != 0; },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/expert_parallel",
           fmt::format("{} is {}, which does not divide the number of experts", key(in, "/expert_parallel"),
                       in.plan.expert_parallel),
           legal_expert_parallel(in));
       note_experts(in, d, undivided_experts(in));
     }},
    {"plan.expert.none", error, "deepspeed, plimsoll", "any", "there is nothing to place",
     [](const RuleInput& in) {
       return has_expert_parallelism(in) && in.model != nullptr && !in.model->layers.empty() && !has_experts(in) &&
              !uses(in, native);
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/expert_parallel",
           fmt::format("{} is {}, but {} has no experts", key(in, "/expert_parallel"), in.plan.expert_parallel,
                       in.model->name),
           "expert_parallel 1, or moe.implementation native with num_experts");
     }},
    {"plan.expert.grouped", error, "deepspeed", "0.19",
     "the experts are parameters of one module, sharded as any other",
     [](const RuleInput& in) {
       return in.plan.engine == Engine::deepspeed && in.plan.expert_parallel > 1 && hf_experts(in);
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/expert_parallel",
           fmt::format("{} is {}, but {} experts are Hugging Face's own and stay on every rank",
                       key(in, "/expert_parallel"), in.plan.expert_parallel, name_of(in.plan.moe.implementation)),
           "moe.implementation autoep (or native), or expert_parallel 1");
     }},
};

constexpr Rule implementation[] = {
    {"plan.moe.engine", error, "any", "any", "whose layers they are",
     [](const RuleInput& in) {
       const bool deepspeed_layers = uses(in, native) || uses(in, autoep);
       if (in.plan.engine == Engine::plimsoll) return !uses(in, fused);
       return uses(in, fused) || (deepspeed_layers && in.plan.engine != Engine::deepspeed);
     },
     [](const RuleInput& in, Diagnostic& d) {
       const char* legal = in.plan.engine == Engine::plimsoll    ? "fused"
                           : in.plan.engine == Engine::deepspeed ? "native, autoep, grouped, loop"
                                                                 : "grouped, loop";
       say(in, d, "/moe/implementation",
           fmt::format("{} experts are none of engine {}", name_of(in.plan.moe.implementation),
                       name_of(in.plan.engine)),
           fmt::format("legal values: {}", legal));
     }},
    {"plan.moe.native_stage", error, "deepspeed", "0.19", "runtime/zero/stage3.py: AssertionError",
     [](const RuleInput& in) {
       return in.plan.engine == Engine::deepspeed && uses(in, native) && in.plan.zero.stage == 3;
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/zero/stage", "DeepSpeed refuses its native MoE layers at stage 3",
           "stages 0, 1 or 2; or moe.implementation autoep, which works at stage 3");
     }},
    {"plan.moe.native_experts", error, "deepspeed", "0.19", "the layer's own argument",
     [](const RuleInput& in) { return uses(in, native) && in.plan.moe.num_experts.empty(); },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/moe", "native MoE layers need their number of experts",
           "write moe.num_experts (and top_k): they replace every dense MLP of the model");
     }},
    {"plan.moe.native_dense", error, "deepspeed", "0.19", "native layers replace dense MLPs",
     [](const RuleInput& in) {
       return uses(in, native) && in.model != nullptr && !in.model->layers.empty() && moe_layers(in) == 0;
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/moe/implementation",
           fmt::format("{} has no dense MLP that a native MoE layer could replace", in.model->name),
           "moe.implementation autoep, grouped or loop for a model with experts of its own");
     }},
    {"plan.moe.native_layers", error, "deepspeed", "0.19", "one number, or one per layer",
     [](const RuleInput& in) {
       return uses(in, native) && in.model != nullptr && in.plan.moe.num_experts.size() > 1 && moe_layers(in) != 0 &&
              static_cast<std::int64_t>(in.plan.moe.num_experts.size()) != moe_layers(in);
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/moe/num_experts",
           fmt::format("{} has {} for {}", key(in, "/moe/num_experts"),
                       counted(std::ssize(in.plan.moe.num_experts), "number"), counted(moe_layers(in), "layer")),
           "one number for all layers, or one per layer");
     }},
    {"plan.moe.top_k", error, "any", "any", "by definition",
     [](const RuleInput& in) {
       const auto& experts = in.plan.moe.num_experts;
       return uses(in, native) && !experts.empty() &&
              in.plan.moe.top_k > *std::min_element(experts.begin(), experts.end());
     },
     [](const RuleInput& in, Diagnostic& d) {
       const auto& experts = in.plan.moe.num_experts;
       const std::int64_t least = *std::min_element(experts.begin(), experts.end());
       say(in, d, "/moe/top_k",
           fmt::format("{} is {} of {}", key(in, "/moe/top_k"), in.plan.moe.top_k, counted(least, "expert")),
           fmt::format("from 1 to {}", least));
     }},
    {"plan.moe.min_capacity", error, "deepspeed", "0.19", "moe/sharded_moe.py: top1gating asserts it",
     [](const RuleInput& in) {
       return uses(in, native) && in.plan.moe.top_k == 1 && in.plan.moe.drop_tokens &&
              in.plan.tokens() < in.plan.moe.min_capacity;
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/moe/min_capacity",
           fmt::format("{} is more than the {} of a micro-batch, which DeepSpeed asserts against",
                       in.plan.moe.min_capacity, counted(in.plan.tokens(), "token")),
           fmt::format("at most {}", in.plan.tokens()));
     }},
    {"plan.moe.native_reduction", error, "deepspeed", "0.19", "runtime/zero/stage_1_and_2.py: assertions",
     [](const RuleInput& in) {
       const ZeroOptions& zero = in.plan.zero;
       if (in.plan.engine != Engine::deepspeed || !(uses(in, native) || uses(in, autoep))) return false;
       return (zero.stage == 2 && !(zero.contiguous_gradients && zero.reduce_scatter)) ||
              (zero.stage == 1 && !zero.reduce_scatter);
     },
     [](const RuleInput& in, Diagnostic& d) {
       const char* pointer = in.plan.zero.reduce_scatter ? "/zero/contiguous_gradients" : "/zero/reduce_scatter";
       say(in, d, pointer,
           fmt::format("{} is false: DeepSpeed asserts it for experts at stage {}", key(in, pointer),
                       in.plan.zero.stage),
           "leave it out: the default is true");
     }},
    {"plan.moe.autoep_family", error, "deepspeed", "0.19", "module_inject/auto_ep_config.py: presets",
     [](const RuleInput& in) {
       return uses(in, autoep) && in.model != nullptr && !in.model->sketch && has_experts(in) &&
              autoep_preset(in.model->family).empty();
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/moe/implementation", fmt::format("AutoEP has no preset for the family {}", in.model->family),
           "presets: mixtral, qwen3_moe (also Qwen2-MoE), qwen3_5_moe, deepseek_v2, deepseek_v3; else grouped experts "
           "with "
           "ZeRO-3, or engine plimsoll");
     }},
};

const char* histogram_fault(const RuleInput& in) {
  const Routing& routing = in.plan.routing;
  if (routing.kind != Routing::Kind::histogram || in.model == nullptr || moe_layers(in) == 0) return nullptr;
  if (routing.counts.empty()) return "a histogram needs counts, [layer][rank][expert], or a file";
  const auto layers = static_cast<std::int64_t>(routing.counts.size());
  if (layers != 1 && layers != moe_layers(in)) return "one layer, or one per MoE layer";
  const std::vector<std::int64_t> experts = expert_counts(in);
  const std::int64_t sent = in.plan.tokens() * routed_per_token(in);
  for (const auto& ranks : routing.counts) {
    if (ranks.size() != 1 && static_cast<int>(ranks.size()) != in.plan.world_size) return "one rank, or one per rank";
    for (const auto& counts : ranks) {
      if (!std::binary_search(experts.begin(), experts.end(), static_cast<std::int64_t>(counts.size())))
        return "as many counts as the layer has experts";
      std::int64_t sum = 0;
      for (const std::int64_t count : counts) sum += std::min(count, sent + 1);
      const bool drops = uses(in, native) && in.plan.moe.drop_tokens;
      if (drops ? sum > sent : sum != sent)
        return drops ? "the counts of a rank add up to at most micro_batch x sequence x top_k"
                     : "the counts of a rank add up to micro_batch x sequence x top_k";
    }
  }
  return nullptr;
}

constexpr Rule routing[] = {
    {"plan.routing.histogram", error, "any", "any", "by definition",
     [](const RuleInput& in) { return histogram_fault(in) != nullptr; },
     [](const RuleInput& in, Diagnostic& d) {
       const std::string experts = expert_counts(in).empty() ? "no" : fmt::format("{}", expert_counts(in).front());
       say(in, d, "/routing/counts",
           fmt::format("{} does not fit: {}", key(in, "/routing/counts"), histogram_fault(in)),
           fmt::format("here {}, {}, {} experts, {} sent per rank", counted(moe_layers(in), "MoE layer"),
                       counted(in.plan.world_size, "rank"), experts,
                       counted(in.plan.tokens() * routed_per_token(in), "row")));
     }},
    {"plan.routing.missing", error, "any", "any", "by definition",
     [](const RuleInput& in) {
       const Routing& asked = in.plan.routing;
       return (asked.kind == Routing::Kind::collapse && asked.share <= 0) ||
              (asked.kind == Routing::Kind::skew && asked.max_over_mean <= 1 &&
               !in.plan.states("/routing/max_over_mean"));
     },
     [](const RuleInput& in, Diagnostic& d) {
       if (in.plan.routing.kind == Routing::Kind::collapse)
         say(in, d, "/routing", "a collapse needs the share of all rows that goes to the first expert of each layer",
             "add \"share\", e.g. 0.92");
       else
         say(in, d, "/routing", "a skew needs the rows of the fullest expert over the mean",
             "add \"max_over_mean\", e.g. 1.5");
     }},
    {"plan.routing.skew", error, "any", "any", "the fullest expert cannot hold more than every row",
     [](const RuleInput& in) {
       if (in.plan.routing.kind != Routing::Kind::skew || expert_counts(in).empty()) return false;
       return in.plan.routing.max_over_mean > static_cast<double>(expert_counts(in).front());
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/routing/max_over_mean",
           fmt::format("{} is {}, more than there are experts", key(in, "/routing/max_over_mean"),
                       in.plan.routing.max_over_mean),
           fmt::format("from 1 to {}", expert_counts(in).front()));
     }},
};

std::vector<Rule> joined() {
  std::vector<Rule> rules(std::begin(expert_parallelism), std::end(expert_parallelism));
  rules.insert(rules.end(), std::begin(implementation), std::end(implementation));
  rules.insert(rules.end(), std::begin(routing), std::end(routing));
  return rules;
}

}  // namespace

std::span<const Rule> expert_rules() {
  static const std::vector<Rule> rules = joined();
  return rules;
}

}  // namespace plimsoll
