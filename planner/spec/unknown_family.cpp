// Reading of a family that is not known (planner/spec/unknown_family.hpp).
#include "planner/spec/unknown_family.hpp"

#include <algorithm>
#include <array>

namespace plimsoll {
namespace {

constexpr std::array<std::string_view, 3> of_experts = {"expert", "moe_", "_moe"};
/// What names a width, a count or a pattern of layers.
constexpr std::array<std::string_view, 24> of_layers = {"layer",  "head",  "dim",       "size",   "rank",   "width",
                                                        "norm",   "bias",  "attention", "attn",   "mlp",    "ffn",
                                                        "conv",   "ssm",   "mamba",     "linear", "state",  "interval",
                                                        "period", "block", "proj",      "embd",   "n_embd", "encoder"};
/// These hold such a word, and no parameter hangs on them.
constexpr std::array<std::string_view, 15> harmless = {
    "max_window_layers", "layer_types",   "sliding_window_size", "chunk_size",     "attention_chunk_size",
    "image_size",        "vision_config", "audio_config",        "return_dict",    "problem_type",
    "encoder_no_repeat", "use_cache",     "gradient_checkpoint", "pretraining_tp", "quantization"};
constexpr std::array<std::string_view, 8> of_losses = {"coef",     "loss", "jitter",    "noise",
                                                       "capacity", "drop", "norm_topk", "group"};

bool holds(std::string_view key, auto&& words) {
  return std::any_of(words.begin(), words.end(),
                     [&](std::string_view word) { return key.find(word) != std::string_view::npos; });
}

/// A count, a switch that is on, a list, a section: what a layer may be built by.
bool says_something(const Node& value) {
  switch (value.kind()) {
    case Node::Kind::null:
    case Node::Kind::string:
    case Node::Kind::number: return false;
    case Node::Kind::boolean: return value.as_bool();
    case Node::Kind::integer: return value.as_int() > 0;
    case Node::Kind::array: return !value.items().empty();
    case Node::Kind::object: return !value.members().empty();
  }
  return false;
}

/// Layers that are not all softmax attention.
bool has_other_layers(const Node& kinds) {
  constexpr std::array<std::string_view, 3> attention = {"full_attention", "sliding_attention", "chunked_attention"};
  if (!kinds.is_array()) return false;
  return std::any_of(kinds.items().begin(), kinds.items().end(), [&](const Node* kind) {
    return kind->is_string() && std::find(attention.begin(), attention.end(), kind->as_string()) == attention.end();
  });
}

bool is_stated(const Node& config, std::string_view key) {
  const Node* value = config.find(key);
  return value != nullptr && !value->is_null();
}

}  // namespace

ModelFamily family_of_unknown(const Node& config) {
  using MoeLayers = ModelFamily::MoeLayers;
  using Shared = ModelFamily::Shared;
  ModelFamily family = *find_family(config.find("kv_lora_rank") != nullptr ? "deepseek_v3" : "llama");
  family.type = "";
  family.tied_by_default = true;  // PretrainedConfig's own default
  family.score_correction = ModelFamily::ScoreCorrection::never;
  family.moe_layers = MoeLayers::none;
  family.shared = Shared::none;
  for (const std::string_view key : {"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"}) {
    if (!is_stated(config, key)) continue;
    const bool in_steps = is_stated(config, "decoder_sparse_step") || is_stated(config, "mlp_only_layers");
    family.moe_layers = in_steps ? MoeLayers::sparse_step : MoeLayers::after_first;
    family.first_dense_default = 0;
    family.experts = {key};
    family.top_k = {"num_experts_per_tok", "moe_topk", "moe_top_k", "moe_k", "num_experts_per_token"};
    family.expert_width = {"moe_intermediate_size"};
    family.expert_width_otherwise = {"intermediate_size"};
    if (is_stated(config, "n_shared_experts")) {
      family.shared = Shared::count_of_expert;
      family.shared_size = {"n_shared_experts"};
    } else if (is_stated(config, "shared_expert_intermediate_size")) {  // a key of the Qwen models, which gate it
      family.shared = Shared::width;
      family.shared_size = {"shared_expert_intermediate_size"};
      family.shared_gate = true;
    }
  }
  return family;
}

UnreadKeys unread_dimensions(const std::vector<const Node*>& unread) {
  UnreadKeys keys;
  for (const Node* value : unread) {
    const std::string_view key = value->key();
    if (key == "layer_types" && has_other_layers(*value)) keys.layers.push_back(value);
    if (!says_something(*value) || holds(key, harmless)) continue;
    if (holds(key, of_experts)) {
      if (!holds(key, of_losses)) keys.experts.push_back(value);
    } else if (holds(key, of_layers)) {
      keys.layers.push_back(value);
    }
  }
  return keys;
}

std::string pointers_of(const std::vector<const Node*>& values) {
  std::string list;
  for (const Node* value : values) list += (list.empty() ? "" : ", ") + value->pointer();
  return list;
}

}  // namespace plimsoll
