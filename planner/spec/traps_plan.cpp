// Which settings run, but not as their author may think?  Traps that the plan alone shows: buckets that are allocated in
// full, options of stage 3 that keep the model gathered, offload that needs the host's memory, saved models without
// weights.  Measured with DeepSpeed 0.19.8 on two H200 unless a row says otherwise.
#include <fmt/core.h>

#include "planner/base/format.hpp"
#include "planner/spec/legality_rules.hpp"
#include "planner/spec/padded_shards.hpp"
#include "planner/spec/trained.hpp"

namespace plimsoll {
namespace {

constexpr Severity warning = Severity::warning, note = Severity::note;
constexpr std::int64_t default_bucket = 500'000'000;
/// Padding by less than a quarter of the parameters is no trap.
constexpr double worth_telling = 1.25;

bool at_stage(const RuleInput& in, int low, int high) {
  return in.plan.engine == Engine::deepspeed && in.plan.zero.stage >= low && in.plan.zero.stage <= high;
}
bool offloads(const RuleInput& in) {
  return at_stage(in, 1, 3) &&
         (in.plan.offload.optimizer != OffloadDevice::none || in.plan.offload.parameters != OffloadDevice::none);
}
std::int64_t total_parameters(const RuleInput& in) {
  std::int64_t total = 0;
  if (in.model != nullptr)
    for (const ParameterDecl& parameter : in.model->parameters) total += parameter.numel;
  return total;
}
std::string bytes_of(std::int64_t elements, std::int64_t each) { return format(Bytes(elements * each)); }
std::int64_t element_size(const RuleInput& in) { return size_of(in.plan.compute_dtype()); }

/// Elements of the parameters that stage 3 keeps whole.
std::int64_t persistent_elements(const RuleInput& in) {
  std::int64_t sum = 0;
  if (in.model != nullptr)
    for (const ParameterDecl& parameter : in.model->parameters)
      if (parameter.numel <= in.plan.zero.stage3_param_persistence_threshold &&
          sum + parameter.numel <= in.plan.zero.stage3_model_persistence_threshold)
        sum += parameter.numel;
  return sum;
}

constexpr Rule rows[] = {
    {"trap.world", warning, "any", "any", "by definition",
     [](const RuleInput& in) { return in.plan.world_size == 1 && at_stage(in, 1, 3) && in.plan.states("/world_size"); },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/zero/stage", fmt::format("stage {} on one rank shards nothing", in.plan.zero.stage),
           "give more ranks, or expect its buffers without its savings");
     }},
    {"trap.all_reduce", note, "deepspeed", "0.19", "measured: no reduce-scatter kernel at stages 1 and 2",
     [](const RuleInput& in) { return at_stage(in, 1, 2) && in.plan.world_size > 1; },
     [](const RuleInput& in, Diagnostic& d) {
       const std::int64_t accumulation = in.plan.zero.stage == 2 ? in.plan.gradient_accumulation : 1;
       say(in, d, "/zero/stage",
           fmt::format(
               "stage {} all-reduces gradients whatever reduce_scatter says: {} parameters' worth of wire a step, "
               "half as much again as plain data parallelism",
               in.plan.zero.stage, 2 * accumulation + 1),
           "stage 3 moves no more at one micro-batch a step");
     }},
    {"trap.bucket", warning, "deepspeed", "0.19", "measured: buckets are allocated in full",
     [](const RuleInput& in) {
       return at_stage(in, 1, 3) && (in.plan.zero.reduce_bucket_size > default_bucket ||
                                     (in.model != nullptr && in.plan.zero.reduce_bucket_size > total_parameters(in)));
     },
     [](const RuleInput& in, Diagnostic& d) {
       const std::int64_t bucket = in.plan.zero.reduce_bucket_size, size = element_size(in);
       const int copies = at_stage(in, 1, 2) && in.plan.zero.overlap_comm ? 2 : 1;
       const bool beyond = in.model != nullptr && bucket > total_parameters(in);
       const std::string than =
           beyond ? fmt::format(", more than the model's {}", format_count(total_parameters(in))) : "";
       say(in, d, "/zero/reduce_bucket_size",
           fmt::format("{} elements{}: {} on the GPU {}, allocated in full whatever the model's size; reducing a full "
                       "bucket copies it once more",
                       format_count(bucket), than, bytes_of(bucket * copies, size),
                       in.plan.zero.stage == 3 ? "permanently" : "during backward"),
           "the default is 500,000,000 elements; smaller costs little");
     }},
    {"trap.prefetch", warning, "deepspeed", "0.19", "measured: one gather call's flat buffer and its copies",
     [](const RuleInput& in) {
       return at_stage(in, 3, 3) && in.plan.zero.stage3_prefetch_bucket_size > default_bucket;
     },
     [](const RuleInput& in, Diagnostic& d) {
       const std::int64_t bucket = in.plan.zero.stage3_prefetch_bucket_size;
       say(in, d, "/zero/stage3_prefetch_bucket_size",
           fmt::format("{} elements: one prefetch gathers up to {} and holds it twice until it is unpacked",
                       format_count(bucket), bytes_of(bucket, element_size(in))),
           "the default is 50,000,000 elements");
     }},
    {"trap.persistence", warning, "deepspeed", "0.19", "measured: persistent parameters stay whole",
     [](const RuleInput& in) {
       return at_stage(in, 3, 3) && in.plan.zero.stage3_param_persistence_threshold > 1'000'000;
     },
     [](const RuleInput& in, Diagnostic& d) {
       const std::string here = in.model == nullptr
                                    ? "in a small model that can be most of it"
                                    : fmt::format("{} here", bytes_of(persistent_elements(in), element_size(in)));
       say(in, d, "/zero/stage3_param_persistence_threshold",
           fmt::format(
               "every tensor of up to {} elements stays whole on every GPU ({}), and each is gathered alone after "
               "every step",
               format_count(in.plan.zero.stage3_param_persistence_threshold), here),
           "the default is 100,000 elements; the Trainer takes 10 x hidden");
     }},
    {"trap.max_live", note, "deepspeed", "0.19", "measured: every gather call of four runs",
     [](const RuleInput& in) { return at_stage(in, 3, 3) && in.plan.zero.stage3_max_live_parameters > 0; },
     [](const RuleInput& in, Diagnostic& d) {
       const std::int64_t live = in.plan.zero.stage3_max_live_parameters, total = total_parameters(in);
       const bool whole = in.model != nullptr && live >= total;
       d.severity = whole && in.plan.states("/zero/stage3_max_live_parameters") ? warning : note;
       if (whole)
         say(in, d, "/zero/stage3_max_live_parameters",
             fmt::format(
                 "the look-ahead fills stage3_max_live_parameters, which is more than this model: all of its {} is "
                 "gathered on every GPU during the step",
                 bytes_of(total, element_size(in))),
             "lower stage3_max_live_parameters to cap what is gathered");
       else
         say(in, d, "/zero/stage3_max_live_parameters",
             fmt::format(
                 "the look-ahead fills stage3_max_live_parameters within about two layers: expect {} of gathered "
                 "weights, not the largest layer",
                 bytes_of(live, element_size(in))),
             "lower stage3_max_live_parameters to cap what is gathered");
     }},
    {"trap.just_in_time", note, "deepspeed", "0.19", "runtime/zero/partitioned_param_coordinator.py",
     [](const RuleInput& in) { return at_stage(in, 3, 3) && in.plan.zero.stage3_max_live_parameters == 0; },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/zero/stage3_max_live_parameters",
           "no look-ahead: every weight is gathered when its layer needs it, least memory and most latency",
           "a few hundred million elements hide most of the gathers");
     }},
    {"trap.compiled_modules", warning, "deepspeed", "0.19", "measured: the hooks break the graph at every module",
     [](const RuleInput& in) { return at_stage(in, 3, 3) && in.plan.compile; },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/compile",
           "at stage 3 each module becomes a program of its own, whose guards the host checks at every call: a small "
           "model "
           "took 219 ms a step where stage 2 took 39; what the guards take is not in the predicted time",
           "compile false, or zero.stage 2 or below, whose layers are one program each");
     }},
    {"trap.sub_group", warning, "deepspeed", "0.19", "runtime/zero/stage3.py",
     [](const RuleInput& in) { return at_stage(in, 3, 3) && in.plan.zero.sub_group_size < 1'000'000; },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/zero/sub_group_size",
           fmt::format(
               "sub_group_size {} makes every parameter a sub-group of its own: one norm all-reduce and one optimizer "
               "call for each",
               in.plan.zero.sub_group_size),
           "the default is 1,000,000,000 elements of partition");
     }},
    {"trap.saved_16bit", warning, "deepspeed", "0.19", "runtime/engine.py: save_16bit_model",
     [](const RuleInput& in) {
       return at_stage(in, 3, 3) && !in.plan.zero.stage3_gather_16bit_weights_on_model_save &&
              in.plan.moe.implementation != MoeImplementation::autoep;
     },
     [](const RuleInput& in, Diagnostic& d) {
       if (!in.plan.states("/zero/stage3_gather_16bit_weights_on_model_save")) d.severity = note;
       say(in, d, "/zero/stage3_gather_16bit_weights_on_model_save",
           "stage3_gather_16bit_weights_on_model_save is off: save_16bit_model writes nothing, and a trainer that "
           "saves the "
           "model's state dict may write a model without weights",
           "write true, or convert a checkpoint with zero_to_fp32.py");
     }},
    {"trap.host_memory", warning, "deepspeed", "0.19", "measured on the host", offloads,
     [](const RuleInput& in, Diagnostic& d) {
       const bool parameters = in.plan.offload.parameters != OffloadDevice::none;
       const bool optimizer = in.plan.offload.optimizer != OffloadDevice::none;
       const std::int64_t each = (optimizer ? 18 : 0) + (parameters ? 2 : 0);
       const bool trains_all = !trains_in_part(in.plan);
       const std::string total = in.model == nullptr || !trains_all ? ""
                                                                    : fmt::format(", {} for this model over all nodes",
                                                                                  bytes_of(total_parameters(in), each));
       say(in, d, optimizer ? "/offload/optimizer" : "/offload/parameters",
           fmt::format(
               "offload needs about {} bytes of host memory per {}parameter{}, before pinned buffers are rounded up",
               each, trains_all ? "" : "trained ", total),
           "compare with the memory of the nodes (--host-memory)");
     }},
    {"trap.pinned", note, "deepspeed", "0.19", "measured, to the byte",
     [](const RuleInput& in) {
       return offloads(in) && ((in.plan.offload.optimizer != OffloadDevice::none && in.plan.offload.pin_optimizer) ||
                               in.plan.offload.parameters != OffloadDevice::none);
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d,
           in.plan.offload.optimizer != OffloadDevice::none ? "/offload/pin_optimizer" : "/offload/pin_parameters",
           "PyTorch rounds every pinned buffer up to a power of two and keeps freed ones: up to twice the bytes (1.4 "
           "times in "
           "the runs measured)",
           "pin_memory false, or PYTORCH_ALLOC_CONF=pinned_max_round_threshold_mb:...");
     }},
    {"trap.cpu_optimizer", warning, "deepspeed, fsdp2", "0.19", "runtime/engine.py: why it refuses by default",
     [](const RuleInput& in) { return in.plan.optimizer.implementation == OptimizerImplementation::torch_cpu; },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/optimizer/implementation",
           "the optimizer runs on the CPU through PyTorch, not through DeepSpeedCPUAdam: a slow step",
           in.plan.engine == Engine::fsdp2
               ? "fully_shard has no other with offload; engine deepspeed has"
               : "leave zero_force_ds_cpu_optimizer and torch_adam out, so that DeepSpeed builds its own");
     }},
    {"trap.overlap", note, "deepspeed", "0.19", "measured: two buckets",
     [](const RuleInput& in) { return at_stage(in, 1, 2) && in.plan.zero.overlap_comm; },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/zero/overlap_comm",
           fmt::format("overlap_comm at stage {} allocates the bucket twice: {}", in.plan.zero.stage,
                       bytes_of(2 * in.plan.zero.reduce_bucket_size, element_size(in))));
     }},
    {"trap.second_copy", note, "deepspeed", "0.19", "measured",
     [](const RuleInput& in) {
       return at_stage(in, 2, 2) && in.plan.gradient_accumulation > 1 && in.plan.gradient_dtype != DType::fp32;
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/gradient_accumulation",
           "with accumulation stage 2 holds its gradient partition twice, and all-reduces every micro-batch");
     }},
    {"trap.sums_in_16bit", note, "deepspeed", "0.19", "runtime/engine.py: get_data_types",
     [](const RuleInput& in) {
       return in.plan.engine == Engine::deepspeed && in.plan.gradient_accumulation > 1 &&
              in.plan.gradient_dtype == DType::bf16;
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, in.plan.states("/gradient_dtype") ? "/gradient_dtype" : "/gradient_accumulation",
           fmt::format("{} micro-batches are summed in bf16, DeepSpeed's default", in.plan.gradient_accumulation),
           "gradient_dtype fp32 (data_types.grad_accum_dtype) at stages 1 to 3");
     }},
    {"trap.padding", warning, "fsdp2", "2.11",
     "shards of equal size along the first dimension, as in the measured steps",
     [](const RuleInput& in) {
       const int shards = in.plan.world_size / in.plan.fsdp.replicate;
       return in.plan.engine == Engine::fsdp2 && in.model != nullptr && shards > 0 &&
              static_cast<double>(padded_elements(*in.model, shards)) >
                  worth_telling * static_cast<double>(total_parameters(in));
     },
     [](const RuleInput& in, Diagnostic& d) {
       const int shards = in.plan.world_size / in.plan.fsdp.replicate;
       const std::vector<int> replicas = replicas_that_pad_less(*in.model, in.plan);
       say(in, d, in.plan.states("/fsdp/replicate") ? "/fsdp/replicate" : "/world_size",
           fmt::format("each parameter is cut along its first dimension into {} shards of equal size, and many have "
                       "fewer rows: "
                       "with the padding {} are gathered instead of {}, and every rank keeps its part of that",
                       shards, bytes_of(padded_elements(*in.model, shards), element_size(in)),
                       bytes_of(total_parameters(in), element_size(in))),
           replicas.empty() ? "fewer ranks pad less"
                            : fmt::format("fsdp.replicate={} shards over {} ranks: {}", replicas.back(),
                                          in.plan.world_size / replicas.back(),
                                          bytes_of(padded_elements(*in.model, in.plan.world_size / replicas.back()),
                                                   element_size(in))));
     }},
    {"trap.ignored", warning, "any", "any", "the engine never looks at it",
     [](const RuleInput& in) {
       return (in.plan.engine != Engine::fsdp2 && in.plan.states("/fsdp")) ||
              ((in.plan.engine == Engine::fsdp2 || in.plan.engine == Engine::ddp) && in.plan.states("/zero"));
     },
     [](const RuleInput& in, Diagnostic& d) {
       const bool fsdp = in.plan.engine != Engine::fsdp2 && in.plan.states("/fsdp");
       say(in, d, fsdp ? "/fsdp" : "/zero",
           fmt::format("engine {} does not look at {}", name_of(in.plan.engine), key(in, fsdp ? "/fsdp" : "/zero")),
           fsdp ? "it belongs to engine fsdp2" : "it belongs to engine deepspeed");
     }},
};

}  // namespace

std::span<const Rule> plan_traps() { return rows; }

}  // namespace plimsoll
