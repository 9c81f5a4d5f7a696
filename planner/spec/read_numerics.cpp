// Keys of config.json that move no byte (planner/spec/read_numerics.hpp).  Defaults: transformers' configuration classes.
#include "planner/spec/read_numerics.hpp"

namespace plimsoll {

namespace {

double number(const Node* node, double otherwise) {
  return node != nullptr && node->is_number() ? node->as_double() : otherwise;
}

void read_rope(ConfigReader& config, Numerics& numerics) {
  numerics.rope_theta = number(config.find({"rope_theta"}), numerics.rope_theta);
  const Node* rope = config.find({"rope_scaling", "rope_parameters"});
  if (rope == nullptr || !rope->is_object()) return;
  const auto inner = [&](std::string_view key, double otherwise) { return number(rope->find(key), otherwise); };
  numerics.rope_theta = inner("rope_theta", numerics.rope_theta);
  const Node* kind = rope->find("rope_type");
  if (kind == nullptr) kind = rope->find("type");
  const std::string name = kind != nullptr && kind->is_string() ? kind->as_string() : "default";
  if (name == "llama3") {
    numerics.rope_factor = inner("factor", 8);
    numerics.rope_low = inner("low_freq_factor", 1);
    numerics.rope_high = inner("high_freq_factor", 4);
    numerics.rope_original_positions = inner("original_max_position_embeddings", 8192);
    if (!(numerics.rope_high > numerics.rope_low)) numerics.rope_unknown = "llama3 without a range of frequencies";
  } else if (name != "default") {
    numerics.rope_unknown = name;
  }
}

}  // namespace

Numerics read_numerics(ConfigReader& config, const ModelSpec& model) {
  Numerics numerics;
  numerics.norm_eps = number(config.find({"rms_norm_eps", "layer_norm_eps"}), numerics.norm_eps);
  read_rope(config, numerics);
  numerics.initializer_range = number(config.find({"initializer_range"}), numerics.initializer_range);
  const bool by_key = model.family.starts_with("qwen") || model.family == "olmoe";
  numerics.renormalise_top_k = config.boolean("norm_topk_prob", !by_key);
  if (model.router_logits_in_loss) numerics.balance_loss = number(config.find({"router_aux_loss_coef"}), 0.001);
  numerics.z_loss = number(config.find({"router_z_loss_coef"}), 0);
  return numerics;
}

}  // namespace plimsoll
