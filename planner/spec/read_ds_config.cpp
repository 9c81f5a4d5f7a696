// What does DeepSpeed 0.19.8 make of a ds_config.json?  Sections in the order in which its configuration classes read them;
// the keys as such are judged by planner/spec/ds_lint.hpp.  Sources: DeepSpeed 0.19's runtime/config.py, runtime/engine.py;
// for "auto": transformers' integrations/deepspeed.py with the defaults of TrainingArguments (per_device_train_batch_size
// 8, gradient_accumulation_steps 1, max_grad_norm 1.0, fp16 and bf16 false).
#include "planner/spec/read_ds_config.hpp"

#include <fmt/core.h>

#include <array>

#include "planner/base/format.hpp"
#include "planner/spec/ds_batch.hpp"
#include "planner/spec/ds_lint.hpp"
#include "planner/spec/ds_values.hpp"
#include "planner/spec/limits.hpp"
#include "planner/spec/plan_draft.hpp"
#include "planner/spec/read_ds_optimizer.hpp"

namespace plimsoll {
namespace {

const Node* in(const Node& object, const char* section, const char* key) {
  const Node* inner = object.find(section);
  return inner == nullptr ? nullptr : inner->find(key);
}

void read_zero_optimization(const Node& root, PlanDraft& draft) {
  const Node* zero = root.find("zero_optimization");
  if (zero == nullptr || zero->is_null()) return;
  draft.state("/zero", *zero);
  if (zero->is_object()) return read_zero(*zero, draft);
  if (zero->kind() != Node::Kind::boolean) {
    draft.report(Severity::error, "ds.type", zero->place(),
                 fmt::format("/zero_optimization is {}, must be an object", zero->kind_in_words()));
    return;
  }
  draft.plan.zero.stage = zero->as_bool() ? 1 : 0;
  draft.state("/zero/stage", *zero);
  draft.report(Severity::warning, "ds.deprecated", zero->place(),
               fmt::format("/zero_optimization as a boolean is deprecated: DeepSpeed takes it for stage {}",
                           draft.plan.zero.stage),
               fmt::format(R"(write "zero_optimization": {{"stage": {}}})", draft.plan.zero.stage));
}

/// One switch, "auto" included: the Trainer's own default is false.
bool enabled(const Node* value, const char* flag, PlanDraft& draft) {
  if (!is_auto(value)) return boolean_value(value).value_or(false);
  if (!draft.will_override("precision"))
    draft.report(
        Severity::note, "ds.auto", value->place(),
        fmt::format("{} is \"auto\": the Trainer makes it the value of --{}, by default false", value->pointer(), flag),
        fmt::format("for a run with --{} give --set precision={}", flag, flag));
  return false;
}

/// A scale that changes by itself needs a window and a lower end.
void check_loss_scale(const Node& fp16, PlanDraft& draft) {
  if (number_value(fp16.find("loss_scale")).value_or(0) != 0) return;
  for (const char* key : {"loss_scale_window", "min_loss_scale"})
    if (const Node* value = fp16.find(key); number_value(value).value_or(1) <= 0)
      draft.report(
          Severity::error, "ds.range", value->place(),
          fmt::format("{} is {}, must be above 0 where loss_scale is dynamic", value->pointer(), value->source()));
}

void read_precision(const Node& root, PlanDraft& draft) {
  const char* bf16_section = root.find("bf16") == nullptr && root.find("bfloat16") != nullptr ? "bfloat16" : "bf16";
  const Node* fp16_switch = in(root, "fp16", "enabled");
  const Node* bf16_switch = in(root, bf16_section, "enabled");
  const bool fp16 = enabled(fp16_switch, "fp16", draft);
  const bool bf16 = enabled(bf16_switch, "bf16", draft);
  if (fp16) check_loss_scale(*root.find("fp16"), draft);
  if (fp16 && bf16)
    draft.report(
        Severity::error, "ds.precision", fp16_switch->place(),
        "fp16 and bf16 are both enabled: DeepSpeed raises \"bf16 and fp16 modes cannot be simultaneously enabled\"",
        "keep one of them");
  const bool one_on_other_auto = (bf16 && is_auto(fp16_switch)) || (fp16 && is_auto(bf16_switch));
  if (one_on_other_auto) {
    const Node& open = is_auto(fp16_switch) ? *fp16_switch : *bf16_switch;
    draft.report(Severity::warning, "ds.precision", open.place(),
                 fmt::format("{} is \"auto\" beside {} on: legal only while the Trainer's flag for it is not given",
                             open.pointer(), bf16 ? "bf16" : "fp16"),
                 "write false");
  }
  if (!bf16 && !fp16 && !draft.will_override("precision"))
    draft.report(Severity::note, "ds.precision", (bf16_switch == nullptr ? root : *bf16_switch).place(),
                 "neither bf16 nor fp16 is on: the answer is for training in fp32");
  draft.plan.precision = bf16 ? Precision::bf16 : fp16 ? Precision::fp16 : Precision::fp32;
  const Node* stated = bf16 ? bf16_switch : fp16 ? fp16_switch : bf16_switch != nullptr ? bf16_switch : fp16_switch;
  draft.state("/precision", stated == nullptr ? root : *stated);
  for (const auto& [section, key] :
       {std::pair{"fp16", "fp16_master_weights_and_grads"}, std::pair{bf16_section, "bf16_master_weights_and_grads"}}) {
    const Node* master = in(root, section, key);
    if (boolean_value(master).value_or(false))
      draft.unsupported(master->place(), fmt::format("{}: 16-bit master weights are not built yet", master->pointer()),
                        "leave it out for an answer with fp32 master weights");
  }
  const Node* states = in(root, bf16_section, "bf16_optimizer_states");
  if (boolean_value(states).value_or(false) &&
      !boolean_value(in(root, bf16_section, "bf16_master_weights_and_grads")).value_or(false))
    draft.report(
        Severity::error, "ds.precision", states->place(),
        fmt::format("{} requires bf16_master_weights_and_grads: DeepSpeed raises without it", states->pointer()),
        "leave it out");
}

std::optional<DType> dtype_word(const std::string& word) {
  for (const char* name : {"fp32", "float32", "float", "torch.float32", "torch.float"})
    if (word == name) return DType::fp32;
  for (const char* name : {"fp16", "float16", "half", "torch.float16", "torch.half"})
    if (word == name) return DType::fp16;
  for (const char* name : {"bf16", "bfloat16", "torch.bfloat16"})
    if (word == name) return DType::bf16;
  return std::nullopt;
}

void read_type(const Node* value, const char* pointer, DType& field, PlanDraft& draft) {
  const std::optional<std::string> word = text_value(value);
  if (!word) return;
  if (const auto type = dtype_word(*word)) {
    field = *type;
    draft.state(pointer, *value);
    return;
  }
  draft.report(Severity::error, "ds.choice", value->place(),
               fmt::format("{} is {}, which is no type", value->pointer(), *word), "legal values: fp32, bf16, fp16");
}

void read_types(const Node& root, PlanDraft& draft) {
  read_type(in(root, "data_types", "grad_accum_dtype"), "/gradient_dtype", draft.plan.gradient_dtype, draft);
  const Node* communication = root.find("communication_data_type");
  if (const auto type = dtype_word(in_lower_case(text_value(communication).value_or("")))) {
    draft.plan.communication_dtype = *type;
    draft.state("/communication_dtype", *communication);
  }
  DType parameters = draft.plan.compute_dtype();
  const Node* stated = in(root, "data_types", "param_dtype");
  read_type(stated, "/param_dtype", parameters, draft);
  draft.plan.places.erase("/param_dtype");
  if (parameters != draft.plan.compute_dtype())
    draft.report(
        Severity::error, "ds.precision", stated->place(),
        fmt::format("{} must be the enabled mode, {}", stated->pointer(), name_of(draft.plan.compute_dtype())));
}

void read_clipping(const Node& root, PlanDraft& draft) {
  const Node* value = root.find("gradient_clipping");
  if (value == nullptr) return;
  if (is_auto(value)) {
    draft.plan.gradient_clipping = 1.0;
    draft.report(Severity::note, "ds.auto", value->place(),
                 "/gradient_clipping is \"auto\": the Trainer makes it max_grad_norm, by default 1.0");
  } else if (value->is_number() && value->as_double() >= 0) {
    draft.plan.gradient_clipping = value->as_double();
  } else {
    return;
  }
  draft.state("/gradient_clipping", *value);
}

/// AutoEP's other ways to multiply, combine and exchange, each with buffers of its own.
void refuse_other_kernels(const Node& section, PlanDraft& draft) {
  constexpr std::pair<const char*, const char*> words[] = {{"combine_impl", "fused_weighted_sum"},
                                                           {"combine_impl", "legacy_bmm"},
                                                           {"row_weighting_impl", "fused"},
                                                           {"gate_up_impl", "fused"},
                                                           {"comm_backend", "deepep"}};
  const auto refuse = [&](const Node& value) {
    draft.unsupported(value.place(), fmt::format("{} is {}: not built yet", value.pointer(), value.source()),
                      "leave it out for an answer with AutoEP's default");
  };
  for (const auto& [key, other] : words)
    if (const Node* value = section.find(key); text_value(value) == other) refuse(*value);
  if (const Node* value = section.find("use_grouped_mm"); !boolean_value(value).value_or(true)) refuse(*value);
}

void read_expert_parallel(const Node& root, PlanDraft& draft) {
  const Node* section = root.find("expert_parallel");
  if (section == nullptr || !section->is_object()) return;
  if (const Node* coefficient = section->find("load_balance_coeff"); coefficient != nullptr && !coefficient->is_null())
    draft.report(Severity::error, "ds.range", coefficient->place(),
                 fmt::format("{}: AutoEP raises on any value but null", coefficient->pointer()), "leave it out");
  if (!boolean_value(section->find("enabled")).value_or(false)) {
    for (const Node::Member& member : section->members())
      if (member.key != "enabled") draft.reading.ignored.insert(member.value->pointer());
    return;
  }
  Plan& plan = draft.plan;
  plan.moe.implementation = MoeImplementation::autoep;
  draft.state("/moe/implementation", *section->find("enabled"));
  const Node* size = section->find("autoep_size");
  const std::int64_t ranks = integer_value(size).value_or(1);
  if (ranks >= 1 && ranks <= limits::world)
    plan.expert_parallel = static_cast<int>(ranks);
  else if (ranks > limits::world)
    draft.report(Severity::error, "ds.range", size->place(),
                 fmt::format("{} is {}, must be at most {}", size->pointer(), size->source(), limits::world));
  draft.state("/expert_parallel", size == nullptr ? *section : *size);
  if (const Node* tensor = section->find("expert_tensor_parallel_size"); integer_value(tensor).value_or(1) > 1)
    draft.report(Severity::error, "ds.range", tensor->place(),
                 fmt::format("{} is {}: AutoEP takes only 1", tensor->pointer(), tensor->source()), "leave it out");
  refuse_other_kernels(*section, draft);
}

/// Parts of DeepSpeed that change the step and that nothing computes yet.
void refuse_unbuilt(const Node& root, PlanDraft& draft) {
  constexpr std::array sections = {"torch_autocast", "hybrid_engine", "data_efficiency"};
  for (const char* name : sections) {
    const Node* section = root.find(name);
    const Node* on = section == nullptr ? nullptr : section->find("enabled");
    if (boolean_value(on).value_or(false))
      draft.unsupported(section->key_place(), fmt::format("/{} is not built yet", name),
                        "leave it out for an answer without it");
  }
  const auto more_than_one = [&](const Node* value, const char* what) {
    if (integer_value(value).value_or(1) > 1)
      draft.unsupported(value->place(),
                        fmt::format("{} is {}: {} is not built yet", value->pointer(), value->source(), what),
                        "leave it out for an answer without it");
  };
  more_than_one(root.find("sequence_parallel_size"), "sequence parallelism");
  more_than_one(in(root, "tensor_parallel", "autotp_size"), "tensor parallelism");
  if (const Node* tp = in(root, "tensor_parallel", "tp"); tp != nullptr)
    more_than_one(tp->find("tp_size"), "tensor parallelism");
  more_than_one(in(root, "pipeline", "stages"), "pipeline parallelism");
}

void check_reduction(const Node& root, PlanDraft& draft) {
  const int stage = draft.plan.zero.stage;
  const Node* factor = root.find("gradient_predivide_factor");
  const Node* prescale = root.find("prescale_gradients");
  const bool divides = number_value(factor).value_or(1.0) != 1.0;
  if (stage >= 2 && draft.plan.zero.reduce_scatter && (divides || boolean_value(prescale).value_or(false))) {
    const Node& wrong = divides ? *factor : *prescale;
    draft.report(Severity::error, "ds.reduction", wrong.place(),
                 fmt::format("{}: DeepSpeed refuses it with reduce_scatter at stage {}", wrong.pointer(), stage),
                 "leave it out, or write reduce_scatter: false");
  }
  const Node* operation = root.find("gradient_allreduce_op");
  if (stage == 3 && in_lower_case(text_value(operation).value_or("mean")) == "sum")
    draft.report(Severity::error, "ds.reduction", operation->place(),
                 "/gradient_allreduce_op is sum: DeepSpeed refuses it at stage 3", "legal value at stage 3: mean");
}

/// A size of the batch equation: a number, or what the Trainer puts for "auto".
std::optional<std::int64_t> batch_size(const Node* value, std::optional<std::int64_t> trainer, const char* argument,
                                       std::int64_t max, PlanDraft& draft) {
  if (value == nullptr) return std::nullopt;
  if (is_auto(value)) {
    if (trainer)
      draft.report(
          Severity::note, "ds.auto", value->place(),
          fmt::format("{} is \"auto\": the Trainer makes it {}, by default {}", value->pointer(), argument, *trainer));
    else
      draft.report(
          Severity::note, "ds.auto", value->place(),
          fmt::format("{} is \"auto\": the Trainer makes it the product of the batch equation", value->pointer()));
    return trainer;
  }
  if (value->kind() != Node::Kind::integer) return std::nullopt;
  if (value->as_int() <= max) return value->as_int();
  draft.report(Severity::error, "ds.range", value->place(),
               fmt::format("{} is {}, must be at most {}", value->pointer(), value->source(), format_count(max)));
  return std::nullopt;
}

/// Ranks: from the command line, the cluster, or the equation itself if the file states its other three numbers.
int world_size(const Node& root, const BatchSizes& sizes, PlanDraft& draft) {
  Plan& plan = draft.plan;
  if (draft.overridden.count("/world_size") != 0) return plan.world_size;
  if (draft.context.cluster_world > 0) return draft.context.cluster_world;
  const std::int64_t per_rank = sizes.micro.value_or(0) * sizes.accumulation.value_or(0);
  if (sizes.train && per_rank > 0 && *sizes.train % per_rank == 0 && *sizes.train > 0 &&
      *sizes.train / per_rank <= limits::world) {
    plan.world_size = static_cast<int>(*sizes.train / per_rank);
    draft.state("/world_size", *root.find("train_batch_size"));
    draft.report(Severity::note, "ds.world", root.find("train_batch_size")->place(),
                 fmt::format("the world size is not stated; by the batch equation it is {}", plan.world_size));
    return plan.world_size;
  }
  draft.report(Severity::note, "ds.world", root.place(), "the world size is not stated; 1 is assumed", "give --gpus N");
  return 1;
}

void read_batch(const Node& root, PlanDraft& draft) {
  Plan& plan = draft.plan;
  const Node* train = root.find("train_batch_size");
  const Node* micro = root.find("train_micro_batch_size_per_gpu");
  const Node* accumulation = root.find("gradient_accumulation_steps");
  const bool micro_set = draft.overridden.count("/micro_batch") != 0;
  const bool accumulation_set = draft.overridden.count("/gradient_accumulation") != 0;
  const std::size_t errors_before = draft.reading.diagnostics.size();
  BatchSizes sizes;
  sizes.train = batch_size(train, std::nullopt, "", limits::zero_elements, draft);
  sizes.micro =
      micro_set ? plan.micro_batch : batch_size(micro, 8, "per_device_train_batch_size", limits::micro_batch, draft);
  sizes.accumulation = accumulation_set ? plan.gradient_accumulation
                                        : batch_size(accumulation, 1, "gradient_accumulation_steps",
                                                     limits::gradient_accumulation, draft);
  Diagnostics since(draft.reading.diagnostics.begin() + static_cast<std::ptrdiff_t>(errors_before),
                    draft.reading.diagnostics.end());
  if (has_errors(since)) return;
  const bool keep = draft.context.keep_batch && sizes.train;
  if (keep) sizes.accumulation.reset();
  const int world = world_size(root, sizes, draft);
  BatchAnswer answer = solve_batch(sizes, world);
  if (!keep && !answer.error.empty() && sizes.train && (micro_set || accumulation_set)) {
    sizes.train.reset();
    answer = solve_batch(sizes, world);
    draft.report(Severity::note, "ds.batch", train->place(),
                 fmt::format("/train_batch_size does not hold with what the command line sets; {} is taken",
                             answer.micro * answer.accumulation * world));
  }
  const Node& stated = train != nullptr && sizes.train ? *train
                       : micro != nullptr              ? *micro
                       : accumulation != nullptr       ? *accumulation
                                                       : root;
  if (!answer.error.empty()) {
    draft.report(Severity::error, "ds.batch", stated.place(), answer.error, answer.help);
    return;
  }
  plan.micro_batch = answer.micro;
  plan.gradient_accumulation = answer.accumulation;
  draft.reading.global_batch = sizes.train.value_or(0);
  if (answer.micro > limits::micro_batch || answer.accumulation > limits::gradient_accumulation)
    draft.report(Severity::error, "ds.range", stated.place(),
                 fmt::format("a micro-batch of {} and {} micro-batches a step are beyond what is answered",
                             format_count(answer.micro), format_count(answer.accumulation)));
  if (!micro_set) draft.state("/micro_batch", micro != nullptr ? *micro : stated);
  if (!accumulation_set && accumulation != nullptr)
    draft.state("/gradient_accumulation", *accumulation);
  else if (!accumulation_set && answer.accumulation != 1)
    draft.state("/gradient_accumulation", stated);
}

void lint(const Node& root, PlanDraft& draft) {
  DsLint lint{draft.plan.zero.stage, draft.reading.diagnostics, draft.reading.ignored,
              asks_for_measured_version(draft.plan)};
  lint_section(root, "", lint);
  if (const Node* zero = root.find("zero_optimization"); zero != nullptr) check_zero_version(*zero, draft);
  const Node* timing = root.find("wall_clock_breakdown");
  if (timing != nullptr && timing->kind() == Node::Kind::boolean && timing->as_bool())
    draft.report(Severity::note, "ds.timing", timing->place(),
                 "/wall_clock_breakdown is on: it synchronises the device around every phase and slows each step",
                 "leave it off outside profiling");
}

void read_root(const Node& root, PlanDraft& draft) {
  draft.state("", root);
  draft.state("/engine", root);
  read_zero_optimization(root, draft);
  read_precision(root, draft);
  read_types(root, draft);
  read_clipping(root, draft);
  read_expert_parallel(root, draft);
  refuse_unbuilt(root, draft);
  const Place root_place = place_of(draft.plan, "");
  read_overrides(draft);
  draft.plan.places[""] = root_place;
  if (draft.plan.engine != Engine::deepspeed)
    draft.report(Severity::error, "ds.engine", place_of(draft.plan, "/engine"),
                 fmt::format("a ds_config is for DeepSpeed, not for engine {}", name_of(draft.plan.engine)),
                 "write a plan.json for other engines");
  read_ds_optimizer(root, draft);
  check_reduction(root, draft);
  read_batch(root, draft);
  if (!draft.plan.states("/sequence"))
    draft.report(Severity::note, "ds.sequence", root_place, "a ds_config does not state the sequence; 4096 is assumed",
                 "give --set sequence=N");
  take_defaults(draft);
  lint(root, draft);
}

}  // namespace

PlanReading read_ds_config_file(const std::shared_ptr<const SourceFile>& file, const PlanContext& context) {
  PlanDraft draft(context);
  Result<Document> document = parse_document(file, Syntax::hjson);
  draft.reading.diagnostics = document.diagnostics();
  if (!document) return std::move(draft.reading);
  draft.reading.document = *document;
  const Node& root = draft.reading.document->root();
  if (root.is_object())
    read_root(root, draft);
  else
    draft.report(Severity::error, "ds.type", root.place(),
                 fmt::format("the document is {}, must be an object", root.kind_in_words()));
  return std::move(draft.reading);
}

Result<Plan> read_ds_config(const std::shared_ptr<const SourceFile>& file, const PlanContext& context) {
  PlanReading reading = read_ds_config_file(file, context);
  if (has_errors(reading.diagnostics)) return std::move(reading.diagnostics);
  return {std::move(reading.plan), std::move(reading.diagnostics)};
}

}  // namespace plimsoll
