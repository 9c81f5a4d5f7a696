// How does a family of models write its config.json, and how does it name its weights?  One row a family; the reader
// (planner/spec/read_model.cpp) and the list of parameters (planner/spec/model_parameters.cpp) have no other knowledge of
// families.  Source: configuration and module classes of transformers 5.17 and the models' own config.json.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace plimsoll {

/// Keys that state the same quantity, the family's own first.
using Keys = std::vector<std::string_view>;

struct ModelFamily {
  enum class MoeLayers : std::uint8_t {
    none,
    all,
    sparse_step,    ///< (i + 1) % decoder_sparse_step == 0 and i not in mlp_only_layers
    after_first,    ///< i >= first_k_dense_replace and i % moe_layer_freq == 0
    interleaved,    ///< (i + 1) % interleave_moe_layer_step == 0, or listed in moe_layers
    after_skipped,  ///< i >= moe_layer_num_skipped
  };
  enum class Shared : std::uint8_t {
    none,
    width,            ///< a key holds the width of the shared expert
    count_of_expert,  ///< a key holds how many, each as wide as a routed expert
    count_of_mlp,     ///< a key holds how many, each as wide as intermediate_size
    one,              ///< one as wide as a routed expert
  };
  enum class Bias : std::uint8_t { never, always, by_key };  ///< by_key: attention_bias (or qkv_bias)
  enum class QkNorm : std::uint8_t { none, per_head, whole_width, per_head_by_key, whole_width_by_key };
  enum class ScoreCorrection : std::uint8_t { never, always, by_method, by_key };

  std::string_view type;  ///< model_type
  // What the config says and what it leaves to the class.
  bool tied_by_default = false;
  Bias qkv_bias = Bias::never;
  Bias output_bias = Bias::never;
  bool attention_bias_default = false;
  QkNorm qk_norm = QkNorm::none;
  double rotary_share = 1;  ///< of a head, where partial_rotary_factor is not stated
  bool latent_attention = false;
  bool indexer = false;
  bool lightning_attention = false;
  bool sinks = false;
  bool layer_norm = false;
  // Mixture of experts
  MoeLayers moe_layers = MoeLayers::none;
  std::int64_t first_dense_default = 0;
  Keys experts = {}, top_k = {}, expert_width = {};
  Keys expert_width_otherwise = {};  ///< where expert_width is not stated
  Keys dense_width = {"intermediate_size"};
  Shared shared = Shared::none;
  Keys shared_size = {};
  bool shared_gate = false;
  bool router_bias = false;
  bool expert_bias = false;
  ScoreCorrection score_correction = ScoreCorrection::never;
  bool scores_fp32 = false;
  // Names of the weights
  std::string_view block = "mlp";    ///< of the feed-forward part of a layer
  std::string_view router = "gate";  ///< within the block
  bool experts_first = false;        ///< experts are built before the router
  bool experts_input_major = false;  ///< experts hold [E, h, 2I] and [E, I, h] instead of [E, 2I, h] and [E, h, I]
  std::string_view shared_name = "shared_expert";
  std::string_view q_norm = "q_norm", k_norm = "k_norm";
  std::string_view relisted = {};  ///< what this list of parameters names otherwise than the model does, in words
};

/// The family of a model_type, null if it is not known.
const ModelFamily* find_family(std::string_view model_type);

/// All model_types that are read.
std::vector<std::string> known_model_types();

}  // namespace plimsoll
