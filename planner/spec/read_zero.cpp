// What does DeepSpeed take out of zero_optimization?  The same keys stand in the section "zero" of plan.json.  Types and
// unknown keys are judged by the linter (planner/spec/ds_lint.hpp); here the values find their place in the plan, by either
// of their names, deprecated ones included, and "auto" becomes what Hugging Face's Trainer makes of it:
//
//   reduce_bucket_size = h * h,  stage3_prefetch_bucket_size = int(0.9 * h * h),  stage3_param_persistence_threshold = 10 * h
//
// with h the model's hidden size (transformers, integrations/deepspeed.py).
#include <fmt/core.h>

#include <iterator>

#include "planner/base/format.hpp"
#include "planner/spec/ds_values.hpp"
#include "planner/spec/engine_version.hpp"
#include "planner/spec/limits.hpp"
#include "planner/spec/plan_draft.hpp"

namespace plimsoll {
namespace {

struct IntegerKey {
  const char* name;
  const char* alias;  ///< "" if there is none
  std::int64_t ZeroOptions::*field;
  /// In tenths: hidden^2 x this / 10, or hidden x this / 10; 0: the Trainer leaves "auto" alone.
  int auto_hidden_squared_tenths = 0;
  int auto_hidden_tenths = 0;
};

constexpr IntegerKey integer_keys[] = {
    {"reduce_bucket_size", "", &ZeroOptions::reduce_bucket_size, 10, 0},
    {"allgather_bucket_size", "", &ZeroOptions::allgather_bucket_size},
    {"sub_group_size", "", &ZeroOptions::sub_group_size},
    {"stage3_prefetch_bucket_size", "prefetch_bucket_size", &ZeroOptions::stage3_prefetch_bucket_size, 9, 0},
    {"stage3_param_persistence_threshold", "param_persistence_threshold",
     &ZeroOptions::stage3_param_persistence_threshold, 0, 100},
    {"stage3_model_persistence_threshold", "model_persistence_threshold",
     &ZeroOptions::stage3_model_persistence_threshold},
    {"stage3_max_live_parameters", "max_live_parameters", &ZeroOptions::stage3_max_live_parameters},
    {"stage3_max_reuse_distance", "max_reuse_distance", &ZeroOptions::stage3_max_reuse_distance},
    {"stage3_module_granularity_threshold", "module_granularity_threshold",
     &ZeroOptions::stage3_module_granularity_threshold},
};

struct BooleanKey {
  const char* name;
  const char* alias;
  bool ZeroOptions::*field;
};

constexpr BooleanKey boolean_keys[] = {
    {"overlap_comm", "", &ZeroOptions::overlap_comm},
    {"contiguous_gradients", "", &ZeroOptions::contiguous_gradients},
    {"reduce_scatter", "", &ZeroOptions::reduce_scatter},
    {"use_multi_rank_bucket_allreduce", "", &ZeroOptions::use_multi_rank_bucket_allreduce},
    {"round_robin_gradients", "", &ZeroOptions::round_robin_gradients},
    {"stage3_use_all_reduce_for_fetch_params", "use_all_reduce_for_fetch_params",
     &ZeroOptions::stage3_use_all_reduce_for_fetch_params},
    {"stage3_allgather_sequential", "allgather_sequential", &ZeroOptions::stage3_allgather_sequential},
    {"stage3_gather_16bit_weights_on_model_save", "gather_16bit_weights_on_model_save",
     &ZeroOptions::stage3_gather_16bit_weights_on_model_save},
    {"memory_efficient_linear", "", &ZeroOptions::memory_efficient_linear},
    {"parameter_alignment", "", &ZeroOptions::parameter_alignment},
};

const Node* by_either_name(const Node& section, const char* name, const char* alias) {
  const Node* value = section.find(name);
  return value == nullptr && *alias != '\0' ? section.find(alias) : value;
}

/// What the Trainer writes for "auto"; without a model DeepSpeed's default stands, and a note says so.
void resolve_auto(const Node& value, const IntegerKey& key, PlanDraft& draft) {
  if (key.auto_hidden_squared_tenths == 0 && key.auto_hidden_tenths == 0) return;
  const ModelSpec* model = draft.context.model;
  const char* formula = key.auto_hidden_tenths != 0           ? "10 x hidden"
                        : key.auto_hidden_squared_tenths == 9 ? "int(0.9 x hidden^2)"
                                                              : "hidden^2";
  std::int64_t& field = draft.plan.zero.*key.field;
  if (model == nullptr || model->hidden == 0) {
    draft.report(Severity::note, "ds.auto", value.place(),
                 fmt::format("{} is \"auto\": the Trainer makes it {}, which needs a model; DeepSpeed's {} is taken",
                             value.pointer(), formula, format_count(field)),
                 "give --model");
    return;
  }
  const std::int64_t hidden = model->hidden;
  field = key.auto_hidden_tenths != 0 ? hidden * key.auto_hidden_tenths / 10
                                      : hidden * hidden * key.auto_hidden_squared_tenths / 10;
  draft.state(std::string("/zero/") + key.name, value);
  draft.report(
      Severity::note, "ds.auto", value.place(),
      fmt::format("{} is \"auto\": the Trainer makes it {} = {}", value.pointer(), formula, format_count(field)));
}

void read_integer(const Node& section, const IntegerKey& key, PlanDraft& draft) {
  const Node* value = by_either_name(section, key.name, key.alias);
  if (value == nullptr) return;
  if (is_auto(value)) {
    // The Trainer looks under the first name only; under the other DeepSpeed drops the word and takes its default.
    if (value->key() == key.name) resolve_auto(*value, key, draft);
    return;
  }
  const std::optional<std::int64_t> number = integer_value(value);
  if (!number || *number < 0) return;
  // Large values mean "no limit"; sums with them must not leave int64.  The model threshold is only compared with.
  const bool only_compared = key.field == &ZeroOptions::stage3_model_persistence_threshold;
  draft.plan.zero.*key.field = only_compared ? *number : std::min(*number, limits::zero_elements);
  draft.state(std::string("/zero/") + key.name, *value);
}

void read_stage(const Node& section, PlanDraft& draft) {
  const Node* value = section.find("stage");
  const std::optional<std::int64_t> stage = integer_value(value);
  if (!stage) return;
  if (*stage < 0 || *stage > 3) {
    draft.report(Severity::error, "ds.range", value->place(),
                 fmt::format("{} is {}: there is no such stage", value->pointer(), *stage), "legal values: 0, 1, 2, 3");
    return;
  }
  draft.plan.zero.stage = static_cast<int>(*stage);
  draft.state("/zero/stage", *value);
}

void read_offload_section(const Node& section, const char* name, const char* deprecated, const char* plan_key,
                          OffloadDevice& device, bool& pin, PlanDraft& draft) {
  const Node* value = section.find(name);
  const std::optional<bool> old = boolean_value(section.find(deprecated));
  const std::string pointer = std::string("/offload/") + plan_key;
  if (old && value != nullptr && !value->is_null()) {
    draft.report(
        Severity::error, "ds.both_names", section.find(deprecated)->key_place(),
        fmt::format("{} and {} say one thing twice; DeepSpeed rejects a file that has both", deprecated, name));
  } else if (old) {
    device = *old ? OffloadDevice::cpu : OffloadDevice::none;
    draft.state(pointer, *section.find(deprecated));
  }
  if (value == nullptr || !value->is_object()) return;
  const std::string word = text_value(value->find("device")).value_or("none");
  device = word == "cpu" ? OffloadDevice::cpu : word == "nvme" ? OffloadDevice::nvme : OffloadDevice::none;
  draft.state(pointer, value->find("device") != nullptr ? *value->find("device") : *value);
  if (const auto pinned = boolean_value(value->find("pin_memory"))) {
    pin = *pinned;
    draft.state(std::string("/offload/pin_") + plan_key, *value->find("pin_memory"));
  }
}

/// leaf_module replaces DeepSpeed's own list of leaf classes; what it names is taken for the model's MoE blocks.
void read_leaf_module(const Node& section, PlanDraft& draft) {
  const Node* leaf = section.find("leaf_module");
  if (leaf == nullptr || !leaf->is_object()) return;
  const auto names_any = [&](const char* key) {
    const Node* list = leaf->find(key);
    return list != nullptr && list->is_array() && !list->items().empty();
  };
  const bool any = names_any("classes") || names_any("names") || names_any("name_suffixes");
  if (!any && leaf->find("classes") == nullptr) return;
  draft.plan.moe.leaf = any;
  draft.state("/moe/leaf", *leaf);
}

/// Features that change bytes or messages and that nothing computes yet.
void refuse_unbuilt(const Node& section, PlanDraft& draft) {
  const auto refuse = [&](const Node& value, const char* what) {
    draft.unsupported(value.place(), fmt::format("{}: {} is not built yet", value.pointer(), what),
                      "leave it out for an answer without it");
  };
  const auto more_than = [&](const char* key, std::int64_t idle, const char* what) {
    const Node* value = section.find(key);
    if (integer_value(value).value_or(idle) > idle) refuse(*value, what);
  };
  const auto switched_on = [&](const Node& object, const char* key, const char* what) {
    const Node* value = object.find(key);
    if (boolean_value(value).value_or(false)) refuse(*value, what);
  };
  more_than("zero_hpz_partition_size", 1, "the secondary partition of ZeRO++ (hpZ)");
  switched_on(section, "zero_quantized_weights", "ZeRO++ with quantized weights (qwZ)");
  switched_on(section, "zero_quantized_nontrainable_weights", "ZeRO++ with quantized frozen weights");
  switched_on(section, "zero_quantized_gradients", "ZeRO++ with quantized gradients (qgZ)");
  if (const Node* zenflow = section.find("zenflow"); zenflow != nullptr && !zenflow->is_null())
    refuse(*zenflow, "ZenFlow");
  if (const Node* offload = section.find("offload_optimizer"); offload != nullptr)
    switched_on(*offload, "super_offload", "SuperOffload");
}

}  // namespace

void read_zero(const Node& section, PlanDraft& draft) {
  Plan& plan = draft.plan;
  read_stage(section, draft);
  for (const IntegerKey& key : integer_keys) read_integer(section, key, draft);
  for (const BooleanKey& key : boolean_keys) {
    const Node* value = by_either_name(section, key.name, key.alias);
    const std::optional<bool> truth = boolean_value(value);
    if (!truth) continue;
    plan.zero.*key.field = *truth;
    draft.state(std::string("/zero/") + key.name, *value);
  }
  const Node* old_gather = section.find("stage3_gather_fp16_weights_on_model_save");
  if (const auto gather = boolean_value(old_gather)) {
    plan.zero.stage3_gather_16bit_weights_on_model_save = *gather;
    draft.state("/zero/stage3_gather_16bit_weights_on_model_save", *old_gather);
  }
  read_offload_section(section, "offload_optimizer", "cpu_offload", "optimizer", plan.offload.optimizer,
                       plan.offload.pin_optimizer, draft);
  read_offload_section(section, "offload_param", "cpu_offload_param", "parameters", plan.offload.parameters,
                       plan.offload.pin_parameters, draft);
  if (const Node* offload = section.find("offload_optimizer"); offload != nullptr) {
    const Node* ratio = offload->find("ratio");
    if (const auto share = number_value(ratio)) {
      if (!(*share >= 0 && *share <= 1))
        draft.report(Severity::error, "ds.range", ratio->place(),
                     fmt::format("{} is {}, must be from 0 to 1", ratio->pointer(), ratio->source()));
      else
        plan.zero.offload_optimizer_ratio = *share;
      draft.state("/zero/offload_optimizer_ratio", *ratio);
    }
  }
  const Node* legacy = section.find("legacy_stage1");
  if (boolean_value(legacy).value_or(false))
    draft.report(Severity::error, "ds.removed", legacy->place(),
                 fmt::format("{}: DeepSpeed raises an exception, the old stage 1 is gone", legacy->pointer()),
                 "leave it out");
  const Node* norm = section.find("compute_grad_norm");
  if (!boolean_value(norm).value_or(true)) {
    if (plan.zero.stage == 1 || plan.zero.stage == 2)
      draft.unsupported(norm->place(),
                        fmt::format("{} is off: a step without its norm is not built yet", norm->pointer()),
                        "leave it out for an answer with the norm");
    else
      draft.report(Severity::error, "ds.stage", norm->place(),
                   fmt::format("{} is off: DeepSpeed refuses it at stage {}", norm->pointer(), plan.zero.stage),
                   "it is for stages 1 and 2 without gradient_clipping; leave it out");
  }
  read_leaf_module(section, draft);
  refuse_unbuilt(section, draft);
}

bool asks_for_measured_version(const Plan& plan) {
  const std::optional<EngineVersion> version = parse_version(plan.engine_version);
  return plan.engine != Engine::deepspeed || !version || *version >= deepspeed_versions::measured;
}

void check_zero_version(const Node& section, PlanDraft& draft) {
  const std::optional<EngineVersion> version = parse_version(draft.plan.engine_version);
  if (!section.is_object() || !version || *version >= deepspeed_versions::zero_plus_plus) return;
  for (const Node::Member& member : section.members())
    if (member.key.starts_with("zero_quantized_") || member.key == "zero_hpz_partition_size")
      draft.report(Severity::error, "ds.version", member.value->key_place(),
                   fmt::format("{} came with ZeRO++ in 0.10.0; DeepSpeed {} rejects the file", member.value->pointer(),
                               draft.plan.engine_version),
                   "leave it out, or use a newer DeepSpeed");
}

}  // namespace plimsoll
