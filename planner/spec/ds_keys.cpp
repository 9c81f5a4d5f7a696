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
    {"/hybrid_engine", UnknownKeys::rejected, "runtime/config.py"},
    {"/compile", UnknownKeys::rejected, "compile/config.py"},
    {"/tensor_parallel", UnknownKeys::rejected, "runtime/tensor_parallel/config.py"},
    {"/tensor_parallel/tp", UnknownKeys::rejected, "runtime/tensor_parallel/config.py"},
    {"/weight_quantization", UnknownKeys::rejected, "inference/config.py"},
    {"/timers", UnknownKeys::ignored, "utils/config.py"},
    {"/timers/throughput", UnknownKeys::rejected, "utils/config.py"},
    {"/comet", UnknownKeys::rejected, "monitor/config.py"},
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

constexpr std::string_view no_mics = "MiCS has been removed";
constexpr std::string_view data_types =
    "fp32|fp16|bf16|int8|float32|float16|bfloat16|float|half|torch.float32|torch.float16|torch.bfloat16|torch.int8";

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
    DsKey{"", "amp", section, ""}.gone("Apex AMP has been removed; write fp16, bf16 or torch_autocast"),
    {"", "torch_autocast", section, ""},
    {"", "data_types", section, ""},
    {"", "gradient_clipping", number, "1.0"},
    DsKey{"", "zero_optimization", any, ""},
    DsKey{"", "zero_allow_untested_optimizer", boolean, "false"},
    DsKey{"", "zero_force_ds_cpu_optimizer", boolean, "true"},
    DsKey{"", "communication_data_type", text, ""}.one_of("fp16|bf16|fp32").in_any_case(),
    DsKey{"", "seq_parallel_communication_data_type", text, "\"fp32\""}.one_of("fp16|bf16|fp32").in_any_case(),
    DsKey{"", "sequence_parallel_size", integer, "1"}.at_least(1),
    DsKey{"", "data_parallel_size", integer, ""}.at_least(1),
    {"", "prescale_gradients", boolean, "false"},
    {"", "gradient_predivide_factor", number, "1.0"},
    DsKey{"", "gradient_allreduce_op", text, "\"mean\""}.one_of("mean|sum").in_any_case(),
    DsKey{"", "sparse_gradients", boolean, "false"}.gone(
        "it has been removed; gradients of an embedding built with sparse=True are reduced sparsely without it"),
    DsKey{"", "disable_allgather", boolean, "false"}.dead("parsed, and nothing reads it"),
    DsKey{"", "allgather_size", integer, ""}.old("belongs to the form zero_optimization: true"),
    {"", "steps_per_print", any, "10"},
    {"", "dump_state", boolean, "false"},
    {"", "disable_python_gc", boolean, "false"},
    {"", "vocabulary_size", integer, ""},
    {"", "wall_clock_breakdown", boolean, "false"},
    {"", "memory_breakdown", boolean, "false"},
    DsKey{"", "graph_harvesting", boolean, "false"}.gone("graph harvesting has been removed"),
    DsKey{"", "activation_checkpointing", section, ""}.dead(inert_checkpointing),
    {"", "aio", section, ""},
    {"", "comms_logger", section, ""},
    {"", "tensorboard", section, ""},
    {"", "wandb", section, ""},
    {"", "csv_monitor", section, ""},
    {"", "comet", section, ""},
    {"", "flops_profiler", section, ""},
    {"", "autotuning", section, ""},
    DsKey{"", "quantize_training", any, ""}.gone("Mixture-of-Quantization has been removed"),
    DsKey{"", "eigenvalue", any, ""}.gone("Mixture-of-Quantization has been removed"),
    DsKey{"", "progressive_layer_drop", any, ""}.gone("progressive layer dropping has been removed"),
    DsKey{"", "curriculum_learning", any, ""}.gone(
        "it has been removed; write data_efficiency.data_sampling.curriculum_learning"),
    {"", "data_efficiency", section, ""},
    DsKey{"", "compression_training", any, ""}.gone("the compression library has been removed"),
    {"", "checkpoint", section, ""},
    DsKey{"", "nebula", any, ""}.gone("Nebula checkpoints have been removed"),
    {"", "datastates_ckpt", any, ""},
    {"", "dataloader_drop_last", boolean, "false"},
    {"", "use_data_before_expert_parallelism", boolean, "false"},
    {"", "hybrid_engine", section, ""},
    DsKey{"", "sparse_attention", any, ""}.gone("sparse attention has been removed"),
    DsKey{"", "pipeline", section, ""}.dead(inert_pipeline),
    DsKey{"", "elasticity", any, ""}.gone(
        "elastic training has been removed; state two of train_batch_size, train_micro_batch_size_per_gpu and "
        "gradient_accumulation_steps"),
    {"", "weight_quantization", section, ""},
    DsKey{"", "compile", section, ""}.dead(inert_compile),
    {"", "timers", section, ""},
    {"", "tensor_parallel", section, ""},
    {"", "expert_parallel", section, ""},
    {"", "log_level", any, ""},

    // zero_optimization
    DsKey{zero, "stage", integer, "0"},
    DsKey{zero, "contiguous_gradients", boolean, "true"}.only(stages_1_to_3),
    DsKey{zero, "reduce_scatter", boolean, "true"}.only(stages_1_to_3),
    DsKey{zero, "reduce_bucket_size", integer, "500000000"}.at_least(1).only(stages_1_to_3),
    DsKey{zero, "use_multi_rank_bucket_allreduce", boolean, "true"}.only(stages_1_2),
    DsKey{zero, "allgather_partitions", boolean, "true"}.dead(no_gather_effect),
    DsKey{zero, "allgather_bucket_size", integer, "500000000"}.dead(no_gather_effect),
    DsKey{zero, "overlap_comm", boolean, ""}.only(stages_1_to_3).or_null(),
    DsKey{zero, "compute_grad_norm", boolean, "true"}.only(stages_1_2),
    DsKey{zero, "load_from_fp32_weights", boolean, "true"}.only(stages_1_to_3),
    DsKey{zero, "elastic_checkpoint", boolean, "false"}.only(stages_1_2),
    DsKey{zero, "offload_param", section, ""}.or_null().only(stage_3),
    DsKey{zero, "offload_optimizer", section, ""}.or_null(),
    DsKey{zero, "zenflow", section, ""}.only(stages_1_to_3).or_null(),
    DsKey{zero, "sub_group_size", integer, "1000000000"}.only(stage_3),
    DsKey{zero, "cpu_offload", boolean, ""}.or_null().old("write offload_optimizer: {device: cpu}").only(stages_1_to_3),
    DsKey{zero, "cpu_offload_param", boolean, ""}.or_null().old("write offload_param: {device: cpu}").only(stage_3),
    DsKey{zero, "cpu_offload_use_pin_memory", boolean, ""}.or_null().dead(
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
    DsKey{zero, "zeropp_loco_param", any, ""}.gone("LoCo has been removed from ZeRO++").only(stage_3),
    DsKey{zero, "mics_shard_size", any, "-1"}.gone(no_mics).only(stage_3),
    DsKey{zero, "mics_hierarchical_params_gather", any, "false"}.gone(no_mics).only(stage_3),
    DsKey{zero, "memory_efficient_linear", boolean, "true"}.only(stage_3),
    DsKey{zero, "pipeline_loading_checkpoint", boolean, "false"}.only(stage_3),
    DsKey{zero, "override_module_apply", boolean, "true"}.only(stage_3),
    DsKey{zero, "log_trace_cache_warnings", boolean, "false"}.only(stage_3),
    DsKey{zero, "enable_sanity_checks", boolean, "false"},
    DsKey{zero, "save_muon_momentum_buffer_in_memory", boolean, "false"}.only(stage_3),
    DsKey{zero, "leaf_module", section, ""}.only(stage_3).or_null(),

    DsKey{offload_param, "device", text, "\"none\""}.one_of("none|cpu|nvme"),
    DsKey{offload_param, "nvme_path", text, ""}.or_null(),
    {offload_param, "buffer_count", integer, "5"},
    {offload_param, "buffer_size", integer, "100000000"},
    {offload_param, "max_in_cpu", integer, "1000000000"},
    {offload_param, "pin_memory", boolean, "true"},

    DsKey{offload_optimizer, "device", text, "\"none\""}.one_of("none|cpu|nvme"),
    DsKey{offload_optimizer, "nvme_path", text, ""}.or_null(),
    {offload_optimizer, "buffer_count", integer, "4"},
    {offload_optimizer, "pin_memory", boolean, "true"},
    {offload_optimizer, "pipeline_read", boolean, "false"},
    {offload_optimizer, "pipeline_write", boolean, "false"},
    {offload_optimizer, "fast_init", boolean, "false"},
    {offload_optimizer, "ratio", number, "1.0"},
    {offload_optimizer, "super_offload", boolean, "false"},
    DsKey{offload_optimizer, "cpuadam_cores_perc", number, "0.8"}.at_most(1),

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
    DsKey{"/zero_optimization/zenflow", "steps_per_epoch", integer, ""}.or_null(),

    // precision
    {"/fp16", "enabled", boolean, "false"},
    {"/fp16", "auto_cast", boolean, "false"},
    {"/fp16", "loss_scale", number, "0"},
    {"/fp16", "initial_scale_power", integer, "16"},
    {"/fp16", "loss_scale_window", integer, "1000"},
    {"/fp16", "hysteresis", integer, "2"},
    {"/fp16", "consecutive_hysteresis", boolean, "false"},
    {"/fp16", "min_loss_scale", integer, "1"},
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
    DsKey{"/torch_autocast", "dtype", text, ""}.one_of(data_types),
    {"/torch_autocast", "lower_precision_safe_modules", list, ""},
    {"/data_types", "grad_accum_dtype", text, ""},
    {"/data_types", "param_dtype", text, ""},
    {"/data_types", "buffer_dtype", text, ""},
    {"/data_types", "keep_in_fp32_modules", list, "\"auto\""},

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
    DsKey{"/checkpoint", "tag_validation", text, "\"Warn\""}.one_of("Warn|Ignore|Fail").in_any_case(),
    {"/checkpoint", "load_universal", boolean, "false"},
    {"/checkpoint", "use_node_local_storage", boolean, "false"},
    {"/checkpoint", "parallel_write", section, ""},
    {"/checkpoint", "checkpoint_serialization", any, ""},
    DsKey{"/checkpoint", "writer", section, ""}.or_null(),
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
    {"/hybrid_engine", "enabled", boolean, "false"},
    DsKey{"/hybrid_engine", "max_out_tokens", integer, "512"}.at_least(1),
    {"/hybrid_engine", "inference_tp_size", integer, "1"},
    {"/hybrid_engine", "release_inference_cache", boolean, "false"},
    {"/hybrid_engine", "pin_parameters", boolean, "true"},
    {"/hybrid_engine", "tp_gather_partition_size", integer, "8"},
    {"/hybrid_engine", "enable_cuda_graph", boolean, "false"},
    {"/weight_quantization", "enabled", boolean, "true"},
    {"/weight_quantization", "quantized_initialization", section, "{}"},
    {"/weight_quantization", "post_init_quant", section, "{}"},
    {"/compile", "deepcompile", boolean, "false"},
    {"/compile", "autoep_non_moe", boolean, "false"},
    {"/compile", "free_activation", boolean, "false"},
    {"/compile", "free_activation_threshold", integer, "10485760"},
    {"/compile", "offload_activation", boolean, "false"},
    {"/compile", "offload_activation_pin_memory", boolean, "true"},
    {"/compile", "offload_opt_states", boolean, "false"},
    {"/compile", "double_buffer", boolean, "true"},
    {"/compile", "symmetric_memory", boolean, "false"},
    {"/compile", "debug_log", boolean, "false"},
    {"/compile", "offload_parameters", boolean, "false"},
    {"/compile", "sync_before_reduce", boolean, "false"},
    {"/compile", "sync_after_reduce", boolean, "false"},
    {"/compile", "sync_before_allgather", boolean, "false"},
    {"/compile", "sync_after_allgather", boolean, "false"},
    {"/compile", "keep_int_input_tensors", boolean, "true"},
    {"/compile", "keep_all_input_tensors", boolean, "false"},
    DsKey{"/compile", "passes", list, ""}.or_null(),
    {"/tensor_parallel", "dtype", any, "\"fp16\""},
    {"/tensor_parallel", "autotp_size", integer, "0"},
    {"/tensor_parallel", "tp_overlap_comm", boolean, "false"},
    DsKey{"/tensor_parallel", "vocab_parallel_lm_head", boolean, ""}.or_null(),
    DsKey{"/tensor_parallel", "vocab_parallel_ce_backend", text, "\"torch\""}.one_of("torch|liger"),
    DsKey{"/tensor_parallel", "tp", section, "{}"}.also("tensor_parallel"),
    DsKey{"/tensor_parallel", "injection_policy_tuple", any, ""}.or_null(),
    DsKey{"/tensor_parallel", "partition_config", section, ""}.or_null(),
    DsKey{"/tensor_parallel", "preset_model", text, ""}.or_null(),
    {"/tensor_parallel", "keep_module_on_host", boolean, "false"},
    DsKey{"/tensor_parallel", "kernel_inject", boolean, "false"}.also("replace_with_kernel_inject"),
    {"/tensor_parallel/tp", "tp_size", integer, "1"},
    {"/tensor_parallel/tp", "tp_grain_size", integer, "1"},
    DsKey{"/tensor_parallel/tp", "mpu", any, ""}.or_null(),
    DsKey{"/tensor_parallel/tp", "tp_group", any, ""}.or_null(),
    {"/timers", "throughput", section, ""},
    {"/timers/throughput", "enabled", boolean, "true"},
    {"/timers/throughput", "synchronized", boolean, "true"},
    {"/comet", "enabled", boolean, "false"},
    {"/comet", "samples_log_interval", integer, "100"},
    DsKey{"/comet", "project", text, ""}.or_null(),
    DsKey{"/comet", "workspace", text, ""}.or_null(),
    DsKey{"/comet", "api_key", text, ""}.or_null(),
    DsKey{"/comet", "experiment_name", text, ""}.or_null(),
    DsKey{"/comet", "experiment_key", text, ""}.or_null(),
    DsKey{"/comet", "online", boolean, ""}.or_null(),
    DsKey{"/comet", "mode", text, ""}.or_null(),
    {"/tensorboard", "enabled", boolean, "false"},
    {"/tensorboard", "output_path", text, "\"\""},
    {"/tensorboard", "job_name", text, "\"DeepSpeedJobName\""},
    {"/wandb", "enabled", boolean, "false"},
    DsKey{"/wandb", "group", text, ""}.or_null(),
    DsKey{"/wandb", "team", text, ""}.or_null(),
    {"/wandb", "project", text, "\"deepspeed\""},
    {"/csv_monitor", "enabled", boolean, "false"},
    {"/csv_monitor", "output_path", text, "\"\""},
    {"/csv_monitor", "job_name", text, "\"DeepSpeedJobName\""},

    // AutoEP
    {"/expert_parallel", "enabled", boolean, "false"},
    DsKey{"/expert_parallel", "autoep_size", integer, "1"}.at_least(1),
    DsKey{"/expert_parallel", "expert_tensor_parallel_size", integer, "1"}.at_least(1),
    {"/expert_parallel", "validate_folding_routing", boolean, "false"},
    {"/expert_parallel", "async_split_plan", boolean, "false"},
    DsKey{"/expert_parallel", "preset_model", text, ""}.one_of(
        "mixtral|qwen3_moe|qwen3_5_moe|deepseek_v2|deepseek_v3|minimax_m3"),
    {"/expert_parallel", "moe_layer_pattern", text, ""},
    {"/expert_parallel", "expert_pattern", text, ""},
    {"/expert_parallel", "router_pattern", text, ""},
    {"/expert_parallel", "use_grouped_mm", boolean, "true"},
    {"/expert_parallel", "disable_triton_grouped_mm", boolean, "false"},
    {"/expert_parallel", "route_norm", any, ""},
    {"/expert_parallel", "route_scale", number, "1.0"},
    DsKey{"/expert_parallel", "score_apply", text, "\"auto\""}.one_of("auto|pre|post"),
    DsKey{"/expert_parallel", "combine_impl", text, "\"auto\""}.one_of(
        "auto|weighted_sum|fused_weighted_sum|legacy_bmm"),
    DsKey{"/expert_parallel", "row_weighting_impl", text, "\"auto\""}.one_of("auto|eager|fused"),
    DsKey{"/expert_parallel", "gate_up_impl", text, "\"separate\""}.one_of("separate|fused"),
    DsKey{"/expert_parallel", "comm_backend", text, "\"comm\""}.one_of("comm|deepep"),
    DsKey{"/expert_parallel", "comm_num_sm", integer, "12"}.at_least(1),
    {"/expert_parallel", "comm_qp_margin", integer, "4"},
    {"/expert_parallel", "comm_max_tokens_per_rank", integer, "0"},
    {"/expert_parallel", "expert_activation", text, ""},
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
