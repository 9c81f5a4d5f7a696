// Which settings of experts run, but not as their author may think?  Where their state is not sharded, what is saved, how a
// router starts, what autocast leaves in fp32, and what stage 3 gathers for a leaf module.  Measured with DeepSpeed 0.19.8
// and PyTorch 2.11 on H200 unless a row says otherwise.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "planner/base/format.hpp"
#include "planner/spec/legality_rules.hpp"

namespace plimsoll {
namespace {

constexpr Severity warning = Severity::warning, note = Severity::note;
using enum MoeImplementation;

bool uses(const RuleInput& in, MoeImplementation implementation) {
  return in.plan.moe.implementation == implementation;
}
bool is_deepspeed(const RuleInput& in) { return in.plan.engine == Engine::deepspeed; }

std::int64_t largest_parameter(const RuleInput& in) {
  std::int64_t largest = 0;
  if (in.model != nullptr)
    for (const ParameterDecl& parameter : in.model->parameters) largest = std::max(largest, parameter.numel);
  return largest;
}

/// Elements of the experts of the largest MoE layer.
std::int64_t largest_block(const RuleInput& in) {
  std::int64_t largest = 0;
  for (const LayerSpec& layer : in.model->layers)
    if (layer.moe)
      largest = std::max(largest, layer.moe->experts * 3 * in.model->hidden * layer.moe->expert_intermediate);
  return largest;
}

/// The pointer of a stated key that the routing's kind does not read; nullptr: none.
const char* unused_routing_key(const RuleInput& in) {
  using Kind = Routing::Kind;
  constexpr std::pair<const char*, Kind> readers[] = {{"/routing/max_over_mean", Kind::skew},
                                                      {"/routing/share", Kind::collapse},
                                                      {"/routing/counts", Kind::histogram},
                                                      {"/routing/file", Kind::histogram}};
  for (const auto& [pointer, kind] : readers)
    if (in.plan.states(pointer) && in.plan.routing.kind != kind) return pointer;
  return nullptr;
}

constexpr Rule rows[] = {
    {"trap.experts_unsharded", note, "deepspeed, plimsoll", "any", "expert data parallelism of one rank",
     [](const RuleInput& in) {
       return in.plan.expert_parallel > 1 && in.plan.expert_parallel == in.plan.world_size &&
              (in.plan.zero.stage > 0 || in.plan.engine == Engine::plimsoll);
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/expert_parallel",
           fmt::format(
               "{} is the world size: no two ranks hold the same expert, so ZeRO shards no expert state and each "
               "rank keeps all 12 bytes of master and moments per parameter of its experts",
               key(in, "/expert_parallel")),
           "a smaller expert_parallel shards them over world / expert_parallel ranks");
     }},
    {"trap.autoep_save", warning, "deepspeed", "0.19", "runtime/engine.py: save_16bit_model",
     [](const RuleInput& in) { return is_deepspeed(in) && uses(in, autoep) && in.plan.expert_parallel > 1; },
     [](const RuleInput& in, Diagnostic& d) {
       const char* pointer = in.plan.states("/moe/implementation") ? "/moe/implementation" : "/expert_parallel";
       if (in.plan.zero.stage == 3)
         say(in, d, pointer, "save_16bit_model raises with AutoEP at stage 3",
             "save checkpoints, and convert them with DeepSpeed's universal checkpoint");
       else
         say(in, d, pointer,
             fmt::format("save_16bit_model with AutoEP below stage 3 writes the experts of one rank only, 1/{} of them",
                         in.plan.expert_parallel),
             "save checkpoints, whose expert files hold all of them");
     }},
    {"trap.zero_router", note, "deepspeed", "0.19", "measured: rows received",
     [](const RuleInput& in) {
       return in.plan.construction == Construction::zero_init && in.model != nullptr && in.model->family == "qwen3_moe";
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, in.plan.states("/construction") ? "/construction" : "/zero/stage",
           "zero.Init shards a parameter before Hugging Face initialises it: the router of Qwen3-MoE, declared as "
           "zeros, stays "
           "zero, and every token goes to the same experts until pretrained weights are loaded or training moves it",
           "load pretrained weights; do not take a run from scratch for balanced");
     }},
    {"trap.fp32_experts", warning, "ddp", "2.11", "measured: grouped_mm is no autocast op",
     [](const RuleInput& in) {
       return in.plan.precision == Precision::bf16_autocast && uses(in, grouped) && has_experts(in);
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/precision",
           "grouped experts run in fp32 under autocast: twice the bytes and a fraction of the speed",
           "precision bf16, with engine fsdp2 or deepspeed for fp32 master weights");
     }},
    {"trap.leaf", note, "deepspeed", "0.19", "measured: leaf blocks are gathered whole",
     [](const RuleInput& in) {
       return is_deepspeed(in) && in.plan.zero.stage == 3 && in.plan.moe.leaf && has_experts(in) &&
              (uses(in, grouped) || uses(in, loop));
     },
     [](const RuleInput& in, Diagnostic& d) {
       const std::int64_t block = largest_block(in);
       say(in, d, "/moe/leaf",
           fmt::format("a leaf gathers all experts of its layer at once: {} of weights, as much again while they are "
                       "unpacked, and all their gradients together in backward",
                       format(Bytes(block * size_of(in.plan.compute_dtype())))),
           "AutoEP keeps only a rank's own experts");
     }},
    {"trap.no_drop", note, "deepspeed", "0.19", "measured",
     [](const RuleInput& in) { return uses(in, native) && !in.plan.moe.drop_tokens; },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/moe/drop_tokens",
           "without dropping, the fullest expert of any rank sets the capacity of all: memory follows the routing, and "
           "every "
           "layer waits for an all-reduce of the counts",
           "give routing as a histogram, or leave a margin");
     }},
    {"trap.capacity", warning, "any", "any", "only DeepSpeed's own layers have a capacity",
     [](const RuleInput& in) {
       const Plan& plan = in.plan;
       return !uses(in, native) && !uses(in, fused) &&
              (plan.states("/moe/capacity_factor") || plan.states("/moe/min_capacity") ||
               plan.states("/moe/drop_tokens") || plan.states("/moe/use_residual"));
     },
     [](const RuleInput& in, Diagnostic& d) {
       const char* first = in.plan.states("/moe/capacity_factor") ? "/moe/capacity_factor"
                           : in.plan.states("/moe/min_capacity")  ? "/moe/min_capacity"
                           : in.plan.states("/moe/drop_tokens")   ? "/moe/drop_tokens"
                                                                  : "/moe/use_residual";
       say(in, d, first,
           fmt::format("{} experts are dropless: capacity and dropping have no effect",
                       name_of(in.plan.moe.implementation)),
           "they belong to moe.implementation native");
     }},
    {"trap.whole_gradients", note, "deepspeed", "0.19", "measured",
     [](const RuleInput& in) {
       if (!is_deepspeed(in) || in.plan.zero.stage != 2 || in.model == nullptr) return false;
       std::int64_t total = 0;
       for (const ParameterDecl& parameter : in.model->parameters) total += parameter.numel;
       return largest_parameter(in) > total / in.plan.world_size;
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/zero/stage",
           fmt::format(
               "stage 2 keeps the whole gradient of every parameter that touches a rank's partition: the largest "
               "parameter alone is {}, more than a rank's share of the model",
               format(Bytes(largest_parameter(in) * size_of(in.plan.gradient_dtype)))));
     }},
    {"trap.routing_key_unused", warning, "any", "any", "by definition",
     [](const RuleInput& in) { return unused_routing_key(in) != nullptr; },
     [](const RuleInput& in, Diagnostic& d) {
       const char* pointer = unused_routing_key(in);
       say(in, d, pointer, fmt::format("{} has no effect on this kind of routing", key(in, pointer)),
           "skew reads max_over_mean, collapse share, histogram counts or a file");
     }},
    {"trap.routing_unused", warning, "any", "any", "the model has no experts",
     [](const RuleInput& in) {
       return in.plan.routing.kind != Routing::Kind::balanced && in.model != nullptr && !has_experts(in);
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/routing", fmt::format("{} has no experts: routing has no effect", in.model->name));
     }},
};

}  // namespace

std::span<const Rule> model_traps() { return rows; }

}  // namespace plimsoll
