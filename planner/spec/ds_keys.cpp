// Which keys does a ds_config.json have?  The table, section by section, in DeepSpeed's own order.
#include "planner/spec/ds_keys.hpp"

#include <algorithm>

namespace plimsoll {
namespace {

using enum KeyType;

constexpr DsSection section_rows[] = {
    {"", UnknownKeys::ignored, "runtime/config.py: look-ups in a dictionary"},
    {"/zero_optimization", UnknownKeys::rejected, "runtime/zero/config.py"},
    {"/zero_optimization/offload_param", UnknownKeys::rejected, "runtime/zero/offload_config.py"},
    {"/zero_optimization/offload_optimizer", UnknownKeys::rejected, "runtime/zero/offload_config.py"},
    {"/zero_optimization/leaf_module", UnknownKeys::rejected, "runtime/zero/leaf_module_config.py"},
    {"/zero_optimization/zenflow", UnknownKeys::rejected, "runtime/zenflow/zenflow_config.py"},
    {"/zero_optimization/zeropp_loco_param", UnknownKeys::not_judged, "runtime/zero/config.py"},
    {"/fp16", UnknownKeys::rejected, "runtime/precision_config.py"},
    {"/bf16", UnknownKeys::rejected, "runtime/precision_config.py"},
    {"/bfloat16", UnknownKeys::rejected, "runtime/precision_config.py"},
    {"/amp", UnknownKeys::passed_on, "runtime/config.py"},
    {"/data_types", UnknownKeys::ignored, "runtime/config.py"},
    {"/torch_autocast", UnknownKeys::ignored, "runtime/torch_autocast.py"},
    {"/optimizer", UnknownKeys::ignored, "runtime/config.py"},
    {"/optimizer/params", UnknownKeys::passed_on, "runtime/engine.py"},
    {"/scheduler", UnknownKeys::ignored, "runtime/config.py"},
    {"/scheduler/params", UnknownKeys::not_judged, "runtime/lr_schedules.py"},
    {"/activation_checkpointing", UnknownKeys::ignored, "runtime/activation_checkpointing/config.py"},
    {"/aio", UnknownKeys::ignored, "runtime/swap_tensor/aio_config.py"},
    {"/checkpoint", UnknownKeys::ignored, "runtime/config.py"},
    {"/expert_parallel", UnknownKeys::ignored, "module_inject/auto_ep_config.py"},
    {"/moe", UnknownKeys::ignored, "nowhere: articles have it, DeepSpeed's training has not"},
    {"/flops_profiler", UnknownKeys::ignored, "profiling/config.py"},
    {"/comms_logger", UnknownKeys::rejected, "comm/config.py"},
    {"/tensorboard", UnknownKeys::rejected, "monitor/config.py"},
    {"/wandb", UnknownKeys::rejected, "monitor/config.py"},
    {"/csv_monitor", UnknownKeys::rejected, "monitor/config.py"},
};

constexpr std::string_view zero = "/zero_optimization";
constexpr std::string_view offload_param = "/zero_optimization/offload_param";
constexpr std::string_view offload_optimizer = "/zero_optimization/offload_optimizer";

constexpr std::string_view no_gather_effect =
    "torch has all_gather_into_tensor, so the whole group is gathered in one call; nothing reads it";
constexpr std::string_view inert_checkpointing =
    "the section does nothing by itself: it takes effect only if the training code calls "
    "deepspeed.checkpointing.configure "
    "and wraps its blocks; Hugging Face's gradient checkpointing ignores it";
constexpr std::string_view inert_pipeline =
    "it takes effect only if the training code hands DeepSpeed a PipelineModule, which no plan here is";
constexpr std::string_view inert_compile =
    "it takes effect only if the training code calls engine.compile(), and DeepCompile's passes are not built here; "
    "layers compiled by torch.compile are --set compile=true";

constexpr DsKey key_rows[] = {
    // batch, precision and the rest of the top level
    {"", "train_batch_size", integer, ""},
    {"", "train_micro_batch_size_per_gpu", integer, ""},
    {"", "gradient_accumulation_steps", integer, ""},
    DsKey{"", "managed_gradient_accumulation", any, ""},
    {"", "optimizer", section, ""},
    {"", "scheduler", section, ""},
    {"", "fp16", section, ""},
    {"", "bf16", section, ""},
    DsKey{"", "bfloat16", section, ""}.old("the older spelling of bf16"),
    {"", "amp", section, ""},
    {"", "torch_autocast", section, ""},
    {"", "data_types", section, ""},
    {"", "gradient_clipping", number, "1.0"},
    DsKey{"", "zero_optimization", any, ""},
    DsKey{"", "zero_allow_untested_optimizer", boolean, "false"},
    DsKey{"", "zero_force_ds_cpu_optimizer", boolean, "true"},
    DsKey{"", "communication_data_type", text, ""}.one_of("fp16|bf16|fp32"),
    DsKey{"", "seq_parallel_communication_data_type", text, "\"fp32\""},
    DsKey{"", "sequence_parallel_size", integer, "1"}.at_least(1),
    DsKey{"", "data_parallel_size", integer, ""}.at_least(1),
    {"", "prescale_gradients", boolean, "false"},
    {"", "gradient_predivide_factor", number, "1.0"},
    DsKey{"", "gradient_allreduce_op", text, "\"mean\""}.one_of("mean|sum"),
    {"", "sparse_gradients", boolean, "false"},
    DsKey{"", "disable_allgather", boolean, "false"}.dead("parsed, and nothing reads it"),
    DsKey{"", "allgather_size", integer, ""}.old("belongs to the form zero_optimization: true"),
    {"", "steps_per_print", any, "10"},
    {"", "dump_state", boolean, "false"},
    {"", "vocabulary_size", any, ""},
    {"", "wall_clock_breakdown", boolean, "false"},
    {"", "memory_breakdown", boolean, "false"},
    {"", "graph_harvesting", boolean, "false"},
    DsKey{"", "activation_checkpointing", section, ""}.dead(inert_checkpointing),
    {"", "aio", section, ""},
    {"", "comms_logger", section, ""},
    {"", "tensorboard", section, ""},
    {"", "wandb", section, ""},
    {"", "csv_monitor", section, ""},
    {"", "comet", any, ""},
    {"", "flops_profiler", section, ""},
    {"", "autotuning", any, ""},
    {"", "quantize_training", any, ""},
    {"", "progressive_layer_drop", any, ""},
    {"", "curriculum_learning", any, ""},
    {"", "data_efficiency", any, ""},
    {"", "compression_training", any, ""},
    {"", "checkpoint", section, ""},
    {"", "nebula", any, ""},
    {"", "datastates_ckpt", any, ""},
    {"", "dataloader_drop_last", boolean, "false"},
    {"", "use_data_before_expert_parallelism", boolean, "false"},
    {"", "hybrid_engine", any, ""},
    {"", "sparse_attention", any, ""},
    DsKey{"", "pipeline", any, ""}.dead(inert_pipeline),
    {"", "elasticity", any, ""},
    {"", "weight_quantization", any, ""},
    DsKey{"", "compile", section, ""}.dead(inert_compile),
    {"", "timers", any, ""},
    {"", "tensor_parallel", any, ""},
    {"", "expert_parallel", section, ""},
    {"", "log_level", any, ""},

    // zero_optimization
    DsKey{zero, "stage", integer, "0"},
    DsKey{zero, "contiguous_gradients", boolean, "true"}.only(stages_1_to_3),
    DsKey{zero, "reduce_scatter", boolean, "true"}.only(stages_1_to_3),
    DsKey{zero, "reduce_bucket_size", integer, "500000000"}.only(stages_1_to_3),
    DsKey{zero, "use_multi_rank_bucket_allreduce", boolean, "true"}.only(stages_1_2),
    DsKey{zero, "allgather_partitions", boolean, "true"}.dead(no_gather_effect),
    DsKey{zero, "allgather_bucket_size", integer, "500000000"}.dead(no_gather_effect),
    DsKey{zero, "overlap_comm", boolean, ""}.only(stages_1_to_3),
    DsKey{zero, "load_from_fp32_weights", boolean, "true"}.only(stages_1_to_3),
    DsKey{zero, "elastic_checkpoint", boolean, "false"}.only(stages_1_2),
    DsKey{zero, "offload_param", section, ""}.only(stage_3),
    DsKey{zero, "offload_optimizer", section, ""},
    DsKey{zero, "zenflow", section, ""}.only(stages_1_to_3),
    DsKey{zero, "sub_group_size", integer, "1000000000"}.only(stage_3),
    DsKey{zero, "cpu_offload", boolean, ""}.old("write offload_optimizer: {device: cpu}").only(stages_1_to_3),
    DsKey{zero, "cpu_offload_param", boolean, ""}.old("write offload_param: {device: cpu}").only(stage_3),
    DsKey{zero, "cpu_offload_use_pin_memory", boolean, ""}.dead(
        "has no effect any more; write pin_memory in offload_*"),
    DsKey{zero, "stage3_prefetch_bucket_size", integer, "50000000"}.also("prefetch_bucket_size").only(stage_3),
    DsKey{zero, "stage3_param_persistence_threshold", integer, "100000"}
        .also("param_persistence_threshold")
        .only(stage_3),
    DsKey{zero, "stage3_model_persistence_threshold", integer, "9223372036854775807"}
        .also("model_persistence_threshold")
        .only(stage_3),
    DsKey{zero, "stage3_max_live_parameters", integer, "1000000000"}.also("max_live_parameters").only(stage_3),
    DsKey{zero, "stage3_max_reuse_distance", integer, "1000000000"}.also("max_reuse_distance").only(stage_3),
    DsKey{zero, "stage3_gather_16bit_weights_on_model_save", boolean, "false"}
        .also("gather_16bit_weights_on_model_save")
        .only(stage_3),
    DsKey{zero, "stage3_module_granularity_threshold", integer, "0"}.also("module_granularity_threshold").only(stage_3),
    DsKey{zero, "stage3_use_all_reduce_for_fetch_params", boolean, "false"}
        .also("use_all_reduce_for_fetch_params")
        .only(stage_3),
    DsKey{zero, "stage3_allgather_sequential", boolean, "false"}.also("allgather_sequential").only(stage_3),
    DsKey{zero, "stage3_partition_stream_chunk_size", integer, "0"}.also("partition_stream_chunk_size").only(stage_3),
    DsKey{zero, "stage3_gather_fp16_weights_on_model_save", boolean, "false"}
        .old("write stage3_gather_16bit_weights_on_model_save")
        .only(stage_3),
    DsKey{zero, "ignore_unused_parameters", boolean, "true"}.only(stages_1_2),
    DsKey{zero, "legacy_stage1", boolean, "false"},
    DsKey{zero, "round_robin_gradients", boolean, "false"}.only(stages_1_2),
    DsKey{zero, "parameter_alignment", boolean, "false"}.only(stages_1_2),
    DsKey{zero, "zero_hpz_partition_size", integer, "1"}.only(stage_3),
    DsKey{zero, "zero_quantized_weights", boolean, "false"}.only(stage_3),
    DsKey{zero, "zero_quantized_nontrainable_weights", boolean, "false"}.only(stage_3),
    DsKey{zero, "zero_quantized_gradients", boolean, "false"}.only(stage_3),
    DsKey{zero, "zeropp_loco_param", section, ""}.only(stage_3),
    DsKey{zero, "mics_shard_size", integer, "-1"}.at_least(-1).only(stage_3),
    DsKey{zero, "mics_hierarchical_params_gather", boolean, "false"}.only(stage_3),
    DsKey{zero, "memory_efficient_linear", boolean, "true"}.only(stage_3),
    DsKey{zero, "pipeline_loading_checkpoint", boolean, "false"}.only(stage_3),
    DsKey{zero, "override_module_apply", boolean, "true"}.only(stage_3),
    DsKey{zero, "log_trace_cache_warnings", boolean, "false"}.only(stage_3),
    DsKey{zero, "enable_sanity_checks", boolean, "false"},
    DsKey{zero, "save_muon_momentum_buffer_in_memory", boolean, "false"}.only(stage_3),
    DsKey{zero, "leaf_module", section, ""}.only(stage_3),

    DsKey{offload_param, "device", text, "\"none\""}.one_of("none|cpu|nvme"),
    {offload_param, "nvme_path", text, ""},
    {offload_param, "buffer_count", integer, "5"},
    {offload_param, "buffer_size", integer, "100000000"},
    {offload_param, "max_in_cpu", integer, "1000000000"},
    {offload_param, "pin_memory", boolean, "true"},

    DsKey{offload_optimizer, "device", text, "\"none\""}.one_of("none|cpu|nvme"),
    {offload_optimizer, "nvme_path", text, ""},
    {offload_optimizer, "buffer_count", integer, "4"},
    {offload_optimizer, "pin_memory", boolean, "true"},
    {offload_optimizer, "pipeline_read", boolean, "false"},
    {offload_optimizer, "pipeline_write", boolean, "false"},
    {offload_optimizer, "fast_init", boolean, "false"},
    {offload_optimizer, "ratio", number, "1.0"},
    {offload_optimizer, "super_offload", boolean, "false"},
    {offload_optimizer, "cpuadam_cores_perc", number, "0.8"},

    {"/zero_optimization/leaf_module", "classes", list, ""},
    {"/zero_optimization/leaf_module", "names", list, "[]"},
    {"/zero_optimization/leaf_module", "name_suffixes", list, "[]"},

    {"/zero_optimization/zenflow", "topk_ratio", number, "0.1"},
    {"/zero_optimization/zenflow", "select_strategy", text, "\"auto\""},
    {"/zero_optimization/zenflow", "select_interval", any, "\"auto\""},
    {"/zero_optimization/zenflow", "update_interval", any, "\"auto\""},
    {"/zero_optimization/zenflow", "overlap_step", boolean, "false"},
    {"/zero_optimization/zenflow", "offload", boolean, "false"},
    {"/zero_optimization/zenflow", "auto_ratio", number, "0.99"},
    {"/zero_optimization/zenflow", "full_warm_up_rounds", integer, "0"},
    {"/zero_optimization/zenflow", "pt_reserved_cores_perc", number, "0.5"},

    // precision
    {"/fp16", "enabled", boolean, "false"},
    {"/fp16", "auto_cast", boolean, "false"},
    {"/fp16", "loss_scale", number, "0"},
    {"/fp16", "initial_scale_power", integer, "16"},
    {"/fp16", "loss_scale_window", integer, "1000"},
    {"/fp16", "hysteresis", integer, "2"},
    {"/fp16", "consecutive_hysteresis", boolean, "false"},
    {"/fp16", "min_loss_scale", number, "1"},
    {"/fp16", "fp16_master_weights_and_grads", boolean, "false"},
    {"/bf16", "enabled", boolean, "false"},
    {"/bf16", "immediate_grad_update", boolean, "false"},
    {"/bf16", "check_grad_overflow", boolean, "true"},
    {"/bf16", "bf16_master_weights_and_grads", boolean, "false"},
    {"/bf16", "bf16_optimizer_states", boolean, "false"},
    {"/bfloat16", "enabled", boolean, "false"},
    {"/bfloat16", "immediate_grad_update", boolean, "false"},
    {"/bfloat16", "check_grad_overflow", boolean, "true"},
    {"/bfloat16", "bf16_master_weights_and_grads", boolean, "false"},
    {"/bfloat16", "bf16_optimizer_states", boolean, "false"},
    {"/amp", "enabled", boolean, "false"},
    {"/amp", "opt_level", text, "\"O1\""},
    {"/torch_autocast", "enabled", boolean, "false"},
    {"/torch_autocast", "dtype", text, ""},
    {"/torch_autocast", "lower_precision_safe_modules", list, ""},
    {"/data_types", "grad_accum_dtype", text, ""},
    {"/data_types", "param_dtype", text, ""},
    {"/data_types", "buffer_dtype", text, ""},

    // optimizer; which arguments a constructor takes is judged where the optimizer is known
    {"/optimizer", "type", text, ""},
    {"/optimizer", "params", section, ""},
    {"/optimizer", "legacy_fusion", boolean, "false"},
    {"/scheduler", "type", text, ""},
    {"/scheduler", "params", section, ""},

    // activations, files, profiling
    DsKey{"/activation_checkpointing", "partition_activations", boolean, "false"}.dead(
        "splits saved inputs over tensor-parallel ranks only, and only where the training code configures "
        "checkpointing"),
    DsKey{"/activation_checkpointing", "number_checkpoints", any, ""}.dead(inert_checkpointing),
    DsKey{"/activation_checkpointing", "contiguous_memory_optimization", boolean, "false"}.dead(inert_checkpointing),
    DsKey{"/activation_checkpointing", "cpu_checkpointing", boolean, "false"}.dead(inert_checkpointing),
    DsKey{"/activation_checkpointing", "profile", boolean, "false"}.dead(inert_checkpointing),
    DsKey{"/activation_checkpointing", "synchronize_checkpoint_boundary", boolean, "false"}.dead(inert_checkpointing),
    {"/aio", "block_size", integer, "1048576"},
    {"/aio", "queue_depth", integer, "8"},
    {"/aio", "intra_op_parallelism", integer, "1"},
    {"/aio", "single_submit", boolean, "false"},
    {"/aio", "overlap_events", boolean, "true"},
    {"/aio", "use_gds", boolean, "false"},
    DsKey{"/checkpoint", "tag_validation", text, "\"Warn\""}.one_of(
        "Warn|Ignore|Fail|WARN|IGNORE|FAIL|warn|ignore|fail"),
    {"/checkpoint", "load_universal", boolean, "false"},
    {"/checkpoint", "use_node_local_storage", boolean, "false"},
    {"/checkpoint", "parallel_write", any, ""},
    {"/checkpoint", "checkpoint_serialization", any, ""},
    {"/checkpoint", "writer", any, ""},
    {"/flops_profiler", "enabled", boolean, "false"},
    {"/flops_profiler", "recompute_fwd_factor", number, "0.0"},
    {"/flops_profiler", "profile_step", integer, "1"},
    {"/flops_profiler", "module_depth", any, "-1"},
    {"/flops_profiler", "top_modules", integer, "1"},
    {"/flops_profiler", "detailed", boolean, "true"},
    {"/flops_profiler", "output_file", any, ""},
    {"/comms_logger", "enabled", boolean, "false"},
    {"/comms_logger", "prof_all", boolean, "true"},
    {"/comms_logger", "prof_ops", list, "[]"},
    {"/comms_logger", "verbose", boolean, "false"},
    {"/comms_logger", "debug", boolean, "false"},
    {"/tensorboard", "enabled", boolean, "false"},
    {"/tensorboard", "output_path", text, "\"\""},
    {"/tensorboard", "job_name", text, "\"DeepSpeedJobName\""},
    {"/wandb", "enabled", boolean, "false"},
    {"/wandb", "group", text, ""},
    {"/wandb", "team", text, ""},
    {"/wandb", "project", text, "\"deepspeed\""},
    {"/csv_monitor", "enabled", boolean, "false"},
    {"/csv_monitor", "output_path", text, "\"\""},
    {"/csv_monitor", "job_name", text, "\"DeepSpeedJobName\""},

    // AutoEP
    {"/expert_parallel", "enabled", boolean, "false"},
    DsKey{"/expert_parallel", "autoep_size", integer, "1"}.at_least(1),
    DsKey{"/expert_parallel", "expert_tensor_parallel_size", integer, "1"}.at_least(1),
    {"/expert_parallel", "validate_folding_routing", boolean, "false"},
    DsKey{"/expert_parallel", "preset_model", text, ""}.one_of("mixtral|qwen3_moe|qwen3_5_moe|deepseek_v2|deepseek_v3"),
    {"/expert_parallel", "moe_layer_pattern", text, ""},
    {"/expert_parallel", "expert_pattern", text, ""},
    {"/expert_parallel", "router_pattern", text, ""},
    {"/expert_parallel", "use_grouped_mm", boolean, "true"},
    {"/expert_parallel", "disable_triton_grouped_mm", boolean, "false"},
    {"/expert_parallel", "route_norm", any, ""},
    {"/expert_parallel", "route_scale", number, "1.0"},
    DsKey{"/expert_parallel", "score_apply", text, "\"auto\""}.one_of("auto|pre|post"),
    DsKey{"/expert_parallel", "combine_impl", text, "\"auto\""}.one_of("auto|weighted_sum|legacy_bmm"),
    {"/expert_parallel", "num_expert_groups", any, ""},
    {"/expert_parallel", "num_limited_groups", any, ""},
    DsKey{"/expert_parallel", "score_func", text, "\"auto\""}.one_of("auto|softmax|sigmoid"),
    {"/expert_parallel", "top_k", any, "\"auto\""},
    {"/expert_parallel", "load_balance_coeff", any, ""},
    {"/expert_parallel", "routed_scaling_factor", any, "\"auto\""},
    {"/expert_parallel", "expert_w1", text, ""},
    {"/expert_parallel", "expert_w2", text, ""},
    {"/expert_parallel", "expert_w3", text, ""},
    {"/expert_parallel", "num_experts_attr", text, ""},
    {"/expert_parallel", "top_k_attr", text, ""},
    {"/expert_parallel", "has_shared_experts", boolean, ""},
    {"/expert_parallel", "shared_experts_pattern", text, ""},
    {"/expert_parallel", "shared_experts_gate_pattern", text, ""},
};

}  // namespace

std::span<const DsSection> ds_sections() { return section_rows; }
std::span<const DsKey> ds_keys() { return key_rows; }

const DsSection* find_section(std::string_view pointer) {
  const auto found = std::find_if(std::begin(section_rows), std::end(section_rows),
                                  [&](const DsSection& row) { return row.pointer == pointer; });
  return found == std::end(section_rows) ? nullptr : found;
}

const DsKey* find_key(std::string_view section, std::string_view name) {
  const auto found = std::find_if(std::begin(key_rows), std::end(key_rows), [&](const DsKey& row) {
    return row.section == section && (row.name == name || (!row.alias.empty() && row.alias == name));
  });
  return found == std::end(key_rows) ? nullptr : found;
}

std::vector<std::string> key_names(std::string_view section) {
  std::vector<std::string> names;
  for (const DsKey& row : key_rows) {
    if (row.section != section) continue;
    names.emplace_back(row.name);
    if (!row.alias.empty()) names.emplace_back(row.alias);
  }
  return names;
}

}  // namespace plimsoll
