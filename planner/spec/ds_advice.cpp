// What should stand in place of a key that DeepSpeed does not know?  First what is known about keys that circulate in
// articles; then a key of that name in another section; then the nearest name in the same section.
#include <fmt/core.h>

#include <algorithm>

#include "planner/base/format.hpp"
#include "planner/spec/ds_keys.hpp"

namespace plimsoll {
namespace {

struct Advice {
  std::string_view section;  ///< "*": wherever it is unknown
  std::string_view name;
  std::string_view text;
};

constexpr std::string_view moe_layer =
    "an argument of deepspeed.moe.layer.MoE(...) in the model's code; for Hugging Face models the section "
    "expert_parallel "
    "(AutoEP) has {enabled, autoep_size, preset_model}";
constexpr std::string_view dropless =
    "AutoEP is dropless and has no capacity; only deepspeed.moe.layer.MoE(...) takes it";
constexpr std::string_view no_such_model_part =
    "DeepSpeed has no such concept; which layers are experts is decided in the model's code, one MoE(...) per layer";

constexpr Advice known[] = {
    {"", "moe",
     "DeepSpeed's training has no section moe: its settings are arguments of deepspeed.moe.layer.MoE(...) in the "
     "model's "
     "code, or, for Hugging Face models, the section expert_parallel {enabled, autoep_size, preset_model}"},
    {"/moe", "enable", "a layer is a mixture of experts because the model builds MoE(...), not because of a switch"},
    {"/moe", "enabled", "a layer is a mixture of experts because the model builds MoE(...), not because of a switch"},
    {"/moe", "num_experts",
     "the argument num_experts of MoE(...): one number per layer (a list fails its check num_experts % ep_size == 0)"},
    {"/moe", "top_k", "the argument k of MoE(...)"},
    {"/moe", "ep_size", "the argument ep_size of MoE(...), or expert_parallel.autoep_size for AutoEP"},
    {"/moe", "load_balance_loss_weight",
     "DeepSpeed never adds the auxiliary loss: multiply l_aux, the second output of MoE(...), in the training loss; "
     "with "
     "Hugging Face models it is router_aux_loss_coef in config.json"},
    {"/moe", "loss_coef", "multiply l_aux, the second output of MoE(...), in the training loss"},
    {"/moe", "encoder", no_such_model_part},
    {"/moe", "decoder", no_such_model_part},
    {"", "encoder", no_such_model_part},
    {"", "decoder", no_such_model_part},
    {"", "load_balance_loss_weight",
     "multiply l_aux in the training loss; with Hugging Face models router_aux_loss_coef in config.json"},
    {"", "expert_parallel_size", "expert_parallel.autoep_size (AutoEP), or the argument ep_size of MoE(...)"},
    {"", "ep_size", "expert_parallel.autoep_size (AutoEP), or the argument ep_size of MoE(...)"},
    {"", "num_experts", moe_layer},
    {"", "top_k", moe_layer},
    {"", "gradient_accumulation_dtype", "data_types.grad_accum_dtype"},
    {"", "grad_accum_dtype", "data_types.grad_accum_dtype"},
    {"", "tensor_parallel_size", "tensor_parallel.autotp_size"},
    {"", "micro_batch_size", "train_micro_batch_size_per_gpu"},
    {"", "batch_size", "train_batch_size"},
    {"/zero_optimization", "contiguous_memory",
     "contiguous_memory_optimization belongs to activation_checkpointing; contiguous_gradients of this section is a "
     "different thing, and true by default"},
    {"/zero_optimization", "contiguous_memory_optimization", "it belongs to activation_checkpointing"},
    {"/zero_optimization", "grad_hooks", "documented once, but no field of the configuration; leave it out"},
    {"/zero_optimization", "gradient_accumulation_dtype", "data_types.grad_accum_dtype"},
    {"/zero_optimization", "ratio", "it belongs to offload_optimizer"},
    {"/zero_optimization", "device", "it belongs to offload_optimizer or offload_param"},
    {"/zero_optimization", "pin_memory", "it belongs to offload_optimizer or offload_param"},
    {"/activation_checkpointing", "contiguous_memory", "contiguous_memory_optimization"},
    {"/activation_checkpointing", "partitioned_activations", "partition_activations"},
    {"/bf16", "loss_scale", "bf16 needs no loss scale; leave it out"},
    {"/bf16", "initial_scale_power", "bf16 needs no loss scale; leave it out"},
    {"/bf16", "loss_scale_window", "bf16 needs no loss scale; leave it out"},
    {"/bf16", "hysteresis", "bf16 needs no loss scale; leave it out"},
    {"/bf16", "min_loss_scale", "bf16 needs no loss scale; leave it out"},
    {"/bf16", "auto_cast", "a key of fp16 only; leave it out"},
    {"/bf16", "check_overflow", "check_grad_overflow"},
    {"/bf16", "opt_level", "a key of Apex's amp; leave it out"},
    {"/fp16", "opt_level", "a key of Apex's amp; leave it out"},
    {"/aio", "thread_count", "intra_op_parallelism"},
    {"/expert_parallel", "capacity_factor", dropless},
    {"/expert_parallel", "eval_capacity_factor", dropless},
    {"/expert_parallel", "min_capacity", dropless},
    {"/expert_parallel", "drop_tokens", dropless},
    {"/expert_parallel", "ep_size", "autoep_size"},
    {"/expert_parallel", "size", "autoep_size"},
    {"/expert_parallel", "expert_parallel_size", "autoep_size"},
    {"/expert_parallel", "num_experts", "AutoEP takes the number of experts from the model; leave it out"},
};

}  // namespace

std::string advice_on(std::string_view section, std::string_view name) {
  for (const Advice& row : known)
    if (row.section == section && row.name == name) return std::string(row.text);

  if (section.substr(0, 4) == "/moe")
    return find_key("/zero_optimization", name) != nullptr ? "it belongs to zero_optimization" : std::string(moe_layer);

  for (const DsKey& row : ds_keys())
    if (row.section != section && row.name.size() > 5 && (row.name == name || row.alias == name))
      return row.section.empty() ? "it belongs to the top level"
                                 : fmt::format("it belongs to {}", row.section.substr(1));

  const auto near = nearest(name, key_names(section));
  return near ? fmt::format("did you mean {}?", *near) : std::string();
}

}  // namespace plimsoll
