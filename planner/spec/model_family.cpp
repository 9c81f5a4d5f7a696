// What does each family write, and how does it name its weights?  Only what differs from the defaults of ModelFamily is set.
#include "planner/spec/model_family.hpp"

#include <algorithm>

namespace plimsoll {
namespace {

using Bias = ModelFamily::Bias;
using MoeLayers = ModelFamily::MoeLayers;
using QkNorm = ModelFamily::QkNorm;
using ScoreCorrection = ModelFamily::ScoreCorrection;
using Shared = ModelFamily::Shared;

const Keys local_experts = {"num_local_experts", "num_experts"};
const Keys plain_experts = {"num_experts", "num_local_experts"};
const Keys routed_experts = {"n_routed_experts", "num_local_experts", "num_experts"};
const Keys per_token = {"num_experts_per_tok", "experts_per_token"};

ModelFamily dense(std::string_view type, Bias qkv, Bias output, QkNorm qk_norm) {
  return {.type = type, .qkv_bias = qkv, .output_bias = output, .qk_norm = qk_norm};
}

ModelFamily qwen_moe(std::string_view type) {
  ModelFamily family{.type = type};
  family.moe_layers = MoeLayers::sparse_step;
  family.experts = plain_experts;
  family.top_k = per_token;
  family.expert_width = {"moe_intermediate_size"};
  return family;
}

ModelFamily qwen2_moe() {
  ModelFamily family = qwen_moe("qwen2_moe");
  family.qkv_bias = Bias::by_key;
  family.attention_bias_default = true;
  family.shared = Shared::width;
  family.shared_size = {"shared_expert_intermediate_size"};
  family.shared_gate = true;
  return family;
}

ModelFamily qwen3_moe() {
  ModelFamily family = qwen_moe("qwen3_moe");
  family.qkv_bias = family.output_bias = Bias::by_key;
  family.qk_norm = QkNorm::per_head;
  family.experts_first = true;
  return family;
}

/// Mixtral and those built on its layer: every layer holds experts as wide as intermediate_size.
ModelFamily mixtral_like(std::string_view type) {
  ModelFamily family{.type = type};
  family.moe_layers = MoeLayers::all;
  family.experts = local_experts;
  family.top_k = per_token;
  family.expert_width = {"intermediate_size"};
  family.scores_fp32 = true;
  return family;
}

ModelFamily olmoe() {
  ModelFamily family = mixtral_like("olmoe");
  family.qkv_bias = family.output_bias = Bias::by_key;
  family.qk_norm = QkNorm::whole_width;
  family.experts = plain_experts;
  family.scores_fp32 = false;
  return family;
}

ModelFamily phimoe() {
  ModelFamily family = mixtral_like("phimoe");
  family.qkv_bias = family.output_bias = Bias::by_key;
  family.layer_norm = true;
  family.router = "router";
  family.scores_fp32 = false;
  return family;
}

ModelFamily gpt_oss() {
  ModelFamily family = mixtral_like("gpt_oss");
  family.qkv_bias = family.output_bias = Bias::by_key;
  family.attention_bias_default = true;
  family.sinks = true;
  family.router = "router";
  family.router_bias = family.expert_bias = true;
  family.experts_input_major = true;
  family.scores_fp32 = false;
  return family;
}

ModelFamily minimax_m2() {
  ModelFamily family = mixtral_like("minimax_m2");
  family.qk_norm = QkNorm::whole_width_by_key;
  family.shared = Shared::width;
  family.shared_size = {"shared_intermediate_size"};
  family.score_correction = ScoreCorrection::by_key;
  return family;
}

ModelFamily minimax_text(std::string_view type) {
  ModelFamily family = mixtral_like(type);
  family.lightning_attention = true;
  family.shared = Shared::width;
  family.shared_size = {"shared_intermediate_size"};
  family.relisted = "the fused qkv_proj of lightning attention is listed as q, k and v";
  return family;
}

ModelFamily dbrx() {
  ModelFamily family = mixtral_like("dbrx");
  family.experts = {"moe_num_experts"};
  family.top_k = {"moe_top_k"};
  family.expert_width = {"ffn_hidden_size"};
  family.scores_fp32 = false;
  family.relisted = "DBRX's fused Wqkv is listed as q, k and v, and its expert weights w1 and v1 as one";
  return family;
}

ModelFamily llama4(std::string_view type) {
  ModelFamily family = mixtral_like(type);
  family.qkv_bias = family.output_bias = Bias::by_key;
  family.moe_layers = MoeLayers::interleaved;
  family.dense_width = {"intermediate_size_mlp"};
  family.shared = Shared::one;
  family.block = "feed_forward";
  family.router = "router";
  family.experts_first = family.experts_input_major = true;
  family.scores_fp32 = false;
  return family;
}

/// DeepSeek-V2, V3 and those built on them: first dense layers, then experts with shared ones.  Scores are fp32.
ModelFamily deepseek_like(std::string_view type, std::int64_t first_dense, ScoreCorrection correction) {
  ModelFamily family{.type = type};
  family.latent_attention = true;
  family.moe_layers = MoeLayers::after_first;
  family.first_dense_default = first_dense;
  family.experts = routed_experts;
  family.top_k = per_token;
  family.expert_width = {"moe_intermediate_size"};
  family.shared = Shared::count_of_expert;
  family.shared_size = {"n_shared_experts"};
  family.score_correction = correction;
  family.scores_fp32 = true;
  family.experts_first = true;
  family.shared_name = "shared_experts";
  return family;
}

ModelFamily with_indexer(ModelFamily family) {
  family.indexer = true;
  return family;
}

ModelFamily glm4_moe() {
  ModelFamily family = deepseek_like("glm4_moe", 1, ScoreCorrection::always);
  family.latent_attention = false;
  family.qkv_bias = Bias::by_key;
  family.qk_norm = QkNorm::per_head_by_key;
  family.rotary_share = 0.5;
  return family;
}

ModelFamily hunyuan(std::string_view type) {
  ModelFamily family{.type = type};
  family.qkv_bias = family.output_bias = Bias::by_key;
  family.qk_norm = QkNorm::per_head_by_key;
  family.q_norm = "query_layernorm";
  family.k_norm = "key_layernorm";
  family.moe_layers = MoeLayers::after_skipped;
  family.experts = plain_experts;
  family.top_k = {"moe_topk", "num_experts_per_tok"};
  family.expert_width = {"moe_intermediate_size"};
  family.expert_width_otherwise = {"intermediate_size"};
  family.shared = Shared::count_of_mlp;
  family.shared_size = {"num_shared_expert"};
  family.router = "gate.wg";
  family.shared_name = "shared_mlp";
  return family;
}

const std::vector<ModelFamily>& families() {
  static const std::vector<ModelFamily> all = {
      dense("llama", Bias::by_key, Bias::by_key, QkNorm::none),
      dense("mistral", Bias::never, Bias::never, QkNorm::none),
      dense("qwen2", Bias::always, Bias::never, QkNorm::none),
      dense("qwen3", Bias::by_key, Bias::by_key, QkNorm::per_head),
      mixtral_like("mixtral"),
      qwen2_moe(),
      qwen3_moe(),
      olmoe(),
      phimoe(),
      gpt_oss(),
      dbrx(),
      llama4("llama4_text"),
      deepseek_like("deepseek_v2", 0, ScoreCorrection::never),
      deepseek_like("deepseek_v3", 3, ScoreCorrection::by_method),
      deepseek_like("kimi_k2", 3, ScoreCorrection::by_method),
      with_indexer(deepseek_like("deepseek_v32", 3, ScoreCorrection::by_method)),
      with_indexer(deepseek_like("glm_moe_dsa", 3, ScoreCorrection::by_method)),
      glm4_moe(),
      minimax_m2(),
      minimax_text("minimax"),
      minimax_text("minimax_text_01"),
      hunyuan("hunyuan"),
      hunyuan("hunyuan_v1_moe"),
  };
  return all;
}

}  // namespace

const ModelFamily* find_family(std::string_view model_type) {
  const auto& all = families();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const ModelFamily& family) { return family.type == model_type; });
  return found == all.end() ? nullptr : &*found;
}

std::vector<std::string> known_model_types() {
  std::vector<std::string> types;
  for (const ModelFamily& family : families()) types.emplace_back(family.type);
  return types;
}

}  // namespace plimsoll
