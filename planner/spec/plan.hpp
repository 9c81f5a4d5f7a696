// What does the user ask for?  A plan with every key resolved: what the file said, the engine's defaults for what it did
// not say, and which were taken.  Keys and their meaning: configs/README.md; units of ZeRO's sizes are elements.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/base/diagnostic.hpp"
#include "planner/base/quantity.hpp"

namespace plimsoll {

enum class Engine : std::uint8_t { deepspeed, fsdp2, ddp, plimsoll };
enum class Precision : std::uint8_t { bf16, fp16, fp32, bf16_autocast };
enum class MoeImplementation : std::uint8_t { native, autoep, grouped, loop, fused };
enum class AttentionImplementation : std::uint8_t { sdpa, eager, flash };
enum class OptimizerImplementation : std::uint8_t { fused, foreach, single, deepspeed_cpu, torch_cpu };
enum class OffloadDevice : std::uint8_t { none, cpu, nvme };
enum class Construction : std::uint8_t { zero_init, meta, gpu, cpu };
const char* name_of(Engine engine);
const char* name_of(Precision precision);
const char* name_of(MoeImplementation implementation);
const char* name_of(AttentionImplementation implementation);
const char* name_of(OptimizerImplementation implementation);
const char* name_of(OffloadDevice device);
const char* name_of(Construction construction);

/// DeepSpeed's zero_optimization section as it takes effect (version 0.19.8); all sizes in elements.
struct ZeroOptions {
  int stage = 0;
  std::int64_t reduce_bucket_size = 500'000'000;
  std::int64_t allgather_bucket_size = 500'000'000;
  bool overlap_comm = false;  ///< default: stage 3
  bool contiguous_gradients = true;
  bool reduce_scatter = true;
  bool use_multi_rank_bucket_allreduce = true;
  bool round_robin_gradients = false;
  std::int64_t sub_group_size = 1'000'000'000;
  std::int64_t stage3_prefetch_bucket_size = 50'000'000;
  std::int64_t stage3_param_persistence_threshold = 100'000;
  std::int64_t stage3_model_persistence_threshold = std::numeric_limits<std::int64_t>::max();
  std::int64_t stage3_max_live_parameters = 1'000'000'000;
  std::int64_t stage3_max_reuse_distance = 1'000'000'000;
  std::int64_t stage3_module_granularity_threshold = 0;
  bool stage3_use_all_reduce_for_fetch_params = false;
  bool stage3_allgather_sequential = false;
  bool stage3_gather_16bit_weights_on_model_save = false;
  bool memory_efficient_linear = true;
  bool parameter_alignment = false;  ///< pads each parameter of the flat buffers of stages 1 and 2 to 16 bytes
  double offload_optimizer_ratio = 1.0;
};

struct FsdpOptions {
  bool reshard_after_forward = true;
  DType reduce_dtype = DType::fp32;
  int replicate = 1;  ///< > 1: hybrid sharding, this many replicas
};

struct MoeOptions {
  MoeImplementation implementation = MoeImplementation::grouped;
  bool leaf = false;
  double capacity_factor = 1.0;
  std::int64_t min_capacity = 4;
  bool drop_tokens = true;
  bool use_residual = false;
  // native only: replaces the dense MLP of each layer by a mixture of such MLPs
  std::vector<std::int64_t> num_experts;  ///< empty: none; one entry: every layer; else one per layer
  std::int64_t top_k = 1;
};

struct Routing {
  enum class Kind : std::uint8_t { balanced, skew, collapse, histogram };
  Kind kind = Kind::balanced;
  double max_over_mean = 1.0;  ///< skew: rows of the fullest expert over the mean
  double share = 0.0;          ///< collapse: share of all rows that goes to the first expert of each layer
  /// histogram: tokens sent, [layer][rank][expert]; one rank stands for all, one layer for all
  std::vector<std::vector<std::vector<std::int64_t>>> counts;
};

struct Recompute {
  int every = 0;  ///< 0: none; 1: every decoder layer; n: every n-th layer, from the first
};

struct OptimizerOptions {
  std::string type = "adamw";
  OptimizerImplementation implementation = OptimizerImplementation::fused;
  DType moments = DType::fp32;  ///< fp32, bf16 or int8
};

struct OffloadOptions {
  OffloadDevice optimizer = OffloadDevice::none;
  OffloadDevice parameters = OffloadDevice::none;
  bool pin_optimizer = true;
  bool pin_parameters = true;
};

/// Low-rank adapters beside frozen linear layers (PEFT).
struct LoraOptions {
  std::int64_t rank = 0;
  std::vector<std::string> targets;  ///< module names ("q_proj"), or "all-linear"; empty: q_proj and v_proj
  bool base_nf4 = false;             ///< the frozen linear layers in 4 bits (QLoRA)
  bool fp32 = true;                  ///< PEFT casts 16-bit adapters to fp32 unless autocast_adapter_dtype is off
  double dropout = 0;                ///< of an adapter's input
};

/// Where in the user's files a key was stated: JSON pointer in the plan's vocabulary ("/zero/stage") to place.
using Places = std::map<std::string, Place>;

struct Plan {
  Engine engine = Engine::deepspeed;
  std::string engine_version;
  int world_size = 1;
  int expert_parallel = 1;
  std::int64_t micro_batch = 1;
  std::int64_t sequence = 4096;
  std::int64_t gradient_accumulation = 1;
  Precision precision = Precision::bf16;
  bool master_fp32 = true;  ///< master_weights
  ZeroOptions zero;
  FsdpOptions fsdp;
  MoeOptions moe;
  Routing routing;
  Recompute recompute;
  AttentionImplementation attention = AttentionImplementation::sdpa;
  std::int64_t loss_chunk = 0;  ///< tokens per chunk of the loss; 0: all at once ("full")
  OptimizerOptions optimizer;
  double gradient_clipping = 0.0;      ///< 0: none
  DType gradient_dtype = DType::bf16;  ///< in which micro-batches are summed
  DType communication_dtype = DType::bf16;
  std::optional<LoraOptions> lora;
  std::vector<std::string> trainable_patterns;  ///< empty: all
  Construction construction = Construction::gpu;
  OffloadOptions offload;
  bool compile = false;
  bool expandable_segments = false;

  Places places;                                      ///< of the keys that were stated; "" is the file's root
  std::map<std::string, std::string> defaults_taken;  ///< pointer -> JSON text of the default

  /// Tokens of one micro-batch on one rank.
  std::int64_t tokens() const { return micro_batch * sequence; }
  /// Bytes per element of the type in which the layers compute.
  DType compute_dtype() const {
    return precision == Precision::fp32 ? DType::fp32 : precision == Precision::fp16 ? DType::fp16 : DType::bf16;
  }
  int expert_data_parallel() const { return world_size / expert_parallel; }
  /// True if the file or the command line stated the key, e.g. "/zero/stage".
  bool states(const std::string& pointer) const { return places.count(pointer) != 0; }
};

/// Place of a key, of the nearest enclosing key that was stated, or of the file.
Place place_of(const Plan& plan, std::string_view pointer);
/// What to call a key in a message: its pointer in the user's file if it was stated there, else in the plan's vocabulary.
std::string shown_pointer(const Plan& plan, const std::string& pointer);

}  // namespace plimsoll
