// Which sizes are known when an out-of-memory message is decoded?  Those that the inputs state, however few: a config.json
// that holds a vocabulary alone, a number of parameters, keys of a plan that no engine here could build.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "planner/cli/common_inputs.hpp"

namespace plimsoll {

/// The letters of the formulas.
// NOLINTBEGIN(readability-identifier-naming): as the formulas write them, where B is not b and K is not k
enum class Letter : std::uint8_t {
  P,   ///< parameters of the pipeline stage and tensor-parallel rank
  N,   ///< data-parallel ranks: GPUs over tensor, pipeline and context parallelism
  V,   ///< vocabulary
  h,   ///< hidden size
  I,   ///< width of a dense MLP
  F,   ///< width of an expert
  E,   ///< experts of a layer
  El,  ///< experts of a layer on one rank: E / expert_parallel
  k,   ///< experts a token is sent to
  Lm,  ///< MoE layers of the pipeline stage
  A,   ///< query heads
  K,   ///< key-value heads
  d,   ///< head size
  b,   ///< micro_batch
  S,   ///< sequence
  T,   ///< tokens: b * S
  B,   ///< reduce_bucket_size
  G,   ///< allgather_bucket_size
  Q,   ///< stage3_prefetch_bucket_size
  U,   ///< sub_group_size
  W,   ///< parameters of one decoder layer
  q,   ///< width of all queries: A * d
  kv,  ///< width of all keys: K * d
  J,   ///< width of a fused query, key and value projection: (A + 2 K) d
};
// NOLINTEND(readability-identifier-naming)
inline constexpr int letter_count = static_cast<int>(Letter::J) + 1;
const char* name_of(Letter letter);

struct KnownSizes {
  std::array<std::optional<double>, letter_count> values{};
  double parameters_tolerance = 0;  ///< relative: half a unit of the last digit stated
  std::string model;                ///< of whose config the sizes are; empty: of the one given
  // What makes a tensor likelier or less so; nothing: not stated.
  std::optional<int> stage;
  std::optional<bool> offload_optimizer, lora;
  std::optional<std::string> attention;
  bool latent_attention = false;  ///< low-rank projections: heads do not give their widths

  std::optional<double> operator[](Letter letter) const { return values[static_cast<std::size_t>(letter)]; }
  void set(Letter letter, double value) { values[static_cast<std::size_t>(letter)] = value; }
};

/// Sizes of a model that was read whole.
void take_model(const ModelSpec& model, KnownSizes& sizes);

/// @param parameters of --parameters, as it was typed ("13897000000", "13.9B"); empty: not stated
/// Errors: cli.parameters, cli.set, and those of the JSON reader.  @throws MachineError
Result<KnownSizes> known_sizes(const Inputs& inputs, const std::string& parameters);

}  // namespace plimsoll
