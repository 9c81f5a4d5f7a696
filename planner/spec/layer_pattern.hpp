// Which layers of a model hold experts, and which attend how?  Each family states the pattern in its own way; the answer is
// one entry per layer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/spec/config_reader.hpp"
#include "planner/spec/model_family.hpp"

namespace plimsoll {

/// @param experts per layer; a layer of none is dense whatever the pattern
std::vector<bool> expert_layers(ConfigReader& config, const ModelFamily& family, std::int64_t layers,
                                const std::vector<std::int64_t>& experts);

/// Layers with lightning instead of softmax attention (MiniMax-Text-01).  attn_type_list holds 0 for lightning and 1 for
/// softmax; transformers' layer_types holds words; where neither is stated the pattern is assumed.
std::vector<bool> lightning_layers(ConfigReader& config, const ModelFamily& family, std::int64_t layers,
                                   std::vector<std::string>& assumptions);

}  // namespace plimsoll
