// How does a config.json become a ModelSpec?  First all keys are read, so that all errors come at once, then the layers are
// laid out and what only holds together is checked.
#include "planner/spec/read_model.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "planner/base/check.hpp"
#include "planner/base/format.hpp"
#include "planner/spec/config_reader.hpp"
#include "planner/spec/layer_pattern.hpp"
#include "planner/spec/limits.hpp"
#include "planner/spec/model_parameters.hpp"
#include "planner/spec/read_numerics.hpp"
#include "planner/spec/unknown_family.hpp"

namespace plimsoll {
namespace {

using limits::width;

class ModelReader {
 public:
  ModelReader(const Document& document, std::string name) : document_(document) { spec_.name = std::move(name); }

  Result<ModelSpec> read() {
    const Node* config = &document_.root();
    if (!config->is_object()) {
      const ObjectReader says_so(*config, diagnostics_, "model");
      return diagnostics_;
    }
    config = text_part(*config);
    choose_family(*config);
    std::vector<ObjectReader> objects{ObjectReader(*config, diagnostics_, "model")};
    if (family_.type == "dbrx") {
      for (const std::string_view part : {"attn_config", "ffn_config"}) {
        if (const Node* inner = objects.front().object(part)) objects.emplace_back(*inner, diagnostics_, "model");
      }
    }
    config_.emplace(std::move(objects), spec_.places);
    read_dimensions();
    const AttentionSpec attention = family_.latent_attention ? read_latent() : read_grouped_query();
    read_moe();
    spec_.numerics = read_numerics(*config_, spec_);
    if (config_->boolean("is_encoder_decoder", false))
      config_->error(config_->find({"is_encoder_decoder"})->place(), "unsupported",
                     "/is_encoder_decoder is true: only decoders are read");
    read_prediction_layers();
    if (family_.type.empty()) report_unread();
    report_missing();
    if (has_errors(diagnostics_)) return diagnostics_;
    lay_out(attention);
    check_experts();
    if (has_errors(diagnostics_)) return diagnostics_;
    spec_.parameters = list_parameters(spec_, family_);
    check_total();
    if (has_errors(diagnostics_)) return diagnostics_;
    return {std::move(spec_), std::move(diagnostics_)};
  }

 private:
  /// A model of several media keeps its language part in text_config.
  const Node* text_part(const Node& root) {
    const Node* text = root.find("text_config");
    if (text == nullptr || !text->is_object()) return &root;
    spec_.assumptions.emplace_back(
        "only text_config is read: encoders of images or sound, and projectors, are not counted");
    return text;
  }

  void choose_family(const Node& config) {
    const Node* type = config.find("model_type");
    const std::string stated = type != nullptr && type->is_string() ? type->as_string() : "";
    spec_.family = stated.empty() ? "unknown" : stated;
    if (const ModelFamily* known = find_family(stated)) {
      family_ = *known;
      return;
    }
    family_ = family_of_unknown(config);
    Diagnostic diagnostic;
    diagnostic.severity = Severity::warning;
    diagnostic.code = "model.family";
    diagnostic.place = type != nullptr ? type->place() : config.place();
    diagnostic.message =
        stated.empty() ? "/model_type is not stated" : fmt::format("the family {} is not known", stated);
    diagnostic.message += "; the model is read as one with Llama's layers";
    const auto near = nearest(stated, known_model_types());
    diagnostic.help =
        near ? fmt::format("did you mean {}?", *near) : "check the number of parameters against the model card";
    diagnostics_.push_back(std::move(diagnostic));
    spec_.assumptions.emplace_back("the model's family is not known: its layers are taken to be built as Llama's");
  }

  void read_dimensions() {
    spec_.hidden = config_->required({"hidden_size", "d_model"}, 1, width, "hidden");
    layers_ = config_->required({"num_hidden_layers", "n_layers"}, 1, limits::layers, "layers");
    heads_ = config_->required({"num_attention_heads", "n_heads"}, 1, limits::heads, "q_heads");
    spec_.vocab = config_->required({"vocab_size"}, 1, limits::vocab, "vocab");
    spec_.max_positions =
        config_->integer({"max_position_embeddings", "max_seq_len"}, 0, limits::sequence, "max_positions").value_or(0);
    spec_.tied_embeddings = tied();
    spec_.layer_norm = family_.layer_norm;
    spec_.head_bias = family_.type == "phimoe" && config_->boolean("lm_head_bias", false);
    spec_.router_logits_in_loss = config_->boolean("output_router_logits", false);
  }

  /// The whole config may state it even where the dimensions are in text_config.
  bool tied() {
    const Node* outer = document_.root().find("tie_word_embeddings");
    const bool otherwise =
        outer != nullptr && outer->kind() == Node::Kind::boolean ? outer->as_bool() : family_.tied_by_default;
    return config_->boolean("tie_word_embeddings", otherwise);
  }

  AttentionSpec read_grouped_query() {
    AttentionSpec a;
    a.q_heads = heads_;
    a.kv_heads = config_->integer({"num_key_value_heads", "kv_n_heads"}, 1, limits::heads, "kv_heads").value_or(heads_);
    a.head_dim = head_dim();
    a.rotary_dim = rotary_dim(a.head_dim);
    const bool bias = config_->boolean("attention_bias", config_->boolean("qkv_bias", family_.attention_bias_default));
    a.qkv_bias =
        family_.qkv_bias == ModelFamily::Bias::always || (family_.qkv_bias == ModelFamily::Bias::by_key && bias);
    a.output_bias = family_.output_bias == ModelFamily::Bias::by_key && bias;
    a.qk_norm = qk_norm();
    a.sinks = family_.sinks;
    if (config_->boolean("use_cla", false)) {
      const Node* key = config_->find({"use_cla"});
      config_->error(key->place(), "unsupported", "/use_cla shares keys and values across layers, which is not read");
    }
    if (a.kv_heads != 0 && heads_ % a.kv_heads != 0) {
      contradiction("kv_heads", "heads",
                    fmt::format("is {}, which does not divide the {} attention heads", a.kv_heads, heads_));
    }
    check_width("heads times head dimension", a.q_heads * a.head_dim);
    return a;
  }

  std::int64_t head_dim() {
    if (const auto stated = config_->integer({"head_dim", "attention_head_dim"}, 1, width, "head_dim")) return *stated;
    if (heads_ == 0 || spec_.hidden == 0) return 0;
    if (spec_.hidden % heads_ != 0) {
      contradiction("q_heads", "heads",
                    fmt::format("is {}, which does not divide the hidden size, {}", heads_, spec_.hidden),
                    "state head_dim if a head is not as wide as hidden_size / num_attention_heads");
    }
    return spec_.hidden / heads_;
  }

  /// The part of a head that a partial rotary embedding turns (GLM-4.5); transformers 5 writes it into rope_parameters.
  std::int64_t rotary_dim(std::int64_t head_dim) {
    const Node* rope = config_->find({"rope_parameters", "rope_scaling"});
    const Node* node = config_->find({"partial_rotary_factor"});
    if (node == nullptr && rope != nullptr) node = rope->find("partial_rotary_factor");
    const double share = node != nullptr && node->is_number() ? node->as_double() : family_.rotary_share;
    if (share <= 0 || share >= 1) return 0;
    return static_cast<std::int64_t>(static_cast<double>(head_dim) * share);
  }

  AttentionSpec::QkNorm qk_norm() {
    switch (family_.qk_norm) {
      case ModelFamily::QkNorm::none: return AttentionSpec::QkNorm::none;
      case ModelFamily::QkNorm::per_head: return AttentionSpec::QkNorm::per_head;
      case ModelFamily::QkNorm::whole_width: return AttentionSpec::QkNorm::whole_width;
      case ModelFamily::QkNorm::per_head_by_key:
        return config_->boolean("use_qk_norm", false) ? AttentionSpec::QkNorm::per_head : AttentionSpec::QkNorm::none;
      case ModelFamily::QkNorm::whole_width_by_key:
        return config_->boolean("use_qk_norm", true) ? AttentionSpec::QkNorm::whole_width : AttentionSpec::QkNorm::none;
    }
    return AttentionSpec::QkNorm::none;
  }

  AttentionSpec read_latent() {
    AttentionSpec a;
    a.kind = AttentionSpec::Kind::latent;
    a.q_heads = a.kv_heads = heads_;
    if (!config_->states("q_lora_rank")) config_->require("q_lora_rank");  // null is a statement: there is none
    a.q_lora_rank = config_->integer({"q_lora_rank"}, 0, width, "q_lora_rank").value_or(0);
    a.kv_lora_rank = config_->required({"kv_lora_rank"}, 1, width);
    a.rope_head_dim = config_->required({"qk_rope_head_dim"}, 0, width);
    a.head_dim = a.rope_head_dim + config_->required({"qk_nope_head_dim"}, 1, width);
    a.value_head_dim = config_->required({"v_head_dim"}, 1, width);
    if (family_.indexer) {
      a.index_heads = config_->required({"index_n_heads"}, 1, limits::heads);
      a.index_head_dim = config_->required({"index_head_dim"}, 1, width);
      a.index_top_k = config_->integer({"index_topk"}, 1, limits::sequence).value_or(2048);  // the classes' default
      if (a.q_lora_rank == 0) {
        config_->error(config_->root_place(), "contradiction",
                       "the indexer reads the query's latent, but /q_lora_rank states none");
      }
      check_width("heads times head dimension of the indexer", a.index_heads * a.index_head_dim);
    }
    if (config_->boolean("attention_bias", false)) {
      config_->error(config_->find({"attention_bias"})->place(), "unsupported",
                     "/attention_bias is true, which is not read for latent attention");
    }
    check_width("heads times head dimension", a.q_heads * (a.head_dim + a.value_head_dim));
    return a;
  }

  void check_width(std::string_view what, std::int64_t value) {
    if (value <= 4 * width) return;
    config_->error(place("q_heads"), "range",
                   fmt::format("{} is {}, must be at most {}", what, format_count(value), format_count(4 * width)));
  }

  void read_moe() {
    mlp_bias_ = config_->boolean("mlp_bias", false);
    if (family_.moe_layers == ModelFamily::MoeLayers::none) {
      intermediate_ = config_->required(family_.dense_width, 1, width, "intermediate");
      return;
    }
    experts_ = required_per_layer(family_.experts, 0, limits::experts, "experts");
    top_k_ = required_per_layer(family_.top_k, 1, limits::experts, "top_k");
    const bool otherwise = !config_->has(family_.expert_width) && !family_.expert_width_otherwise.empty();
    expert_width_ = required_per_layer(otherwise ? family_.expert_width_otherwise : family_.expert_width, 1, width,
                                       "expert_intermediate");
    is_moe_ = expert_layers(*config_, family_, layers_, experts_);
    intermediate_ = config_->integer(family_.dense_width, 0, width, "intermediate").value_or(0);
    const bool some_dense =
        config_->has(family_.experts) && std::find(is_moe_.begin(), is_moe_.end(), false) != is_moe_.end();
    if (some_dense && intermediate_ == 0) config_->require(family_.dense_width.front());
    read_shared();
  }

  std::vector<std::int64_t> required_per_layer(const Keys& keys, std::int64_t min, std::int64_t max,
                                               std::string_view place) {
    if (!config_->has(keys)) config_->require(keys.front());
    const auto values = config_->per_layer(keys, layers_, min, max, place);
    return values.value_or(std::vector<std::int64_t>(static_cast<std::size_t>(layers_), min));
  }

  /// Width of the shared experts of each layer, summed.
  void read_shared() {
    const auto n = static_cast<std::size_t>(layers_);
    shared_.assign(n, 0);
    const auto stated = family_.shared_size.empty()
                            ? std::nullopt
                            : config_->per_layer(family_.shared_size, layers_, 0, width, "shared");
    switch (family_.shared) {
      case ModelFamily::Shared::none: return;
      case ModelFamily::Shared::one: shared_ = expert_width_; return;
      case ModelFamily::Shared::width:
        if (stated) shared_ = *stated;
        // Only the class that has a gate on the shared expert always has that expert.
        if (!stated && family_.shared_gate) config_->require(family_.shared_size.front());
        return;
      case ModelFamily::Shared::count_of_expert:
      case ModelFamily::Shared::count_of_mlp: break;
    }
    if (!stated && !config_->states(family_.shared_size.front())) config_->require(family_.shared_size.front());
    const bool as_expert = family_.shared == ModelFamily::Shared::count_of_expert;
    for (std::size_t i = 0; stated && i < n; ++i) {
      shared_[i] = (*stated)[i] * (as_expert ? expert_width_[i] : intermediate_);
      if (shared_[i] <= width) continue;
      config_->error(place("shared"), "range",
                     fmt::format("the shared experts are {} wide in all, must be at most {}", format_count(shared_[i]),
                                 format_count(width)));
      return;
    }
  }

  bool score_correction() {
    switch (family_.score_correction) {
      case ModelFamily::ScoreCorrection::never: return false;
      case ModelFamily::ScoreCorrection::always: return true;
      case ModelFamily::ScoreCorrection::by_method:
        return config_->string("topk_method").value_or("noaux_tc") == "noaux_tc";
      case ModelFamily::ScoreCorrection::by_key: return config_->boolean("use_routing_bias", true);
    }
    return false;
  }

  void lay_out(const AttentionSpec& attention) {
    const std::vector<bool> lightning = lightning_layers(*config_, family_, layers_, spec_.assumptions);
    const bool correction = score_correction();
    spec_.layers.resize(static_cast<std::size_t>(layers_));
    for (std::size_t i = 0; i < spec_.layers.size(); ++i) {
      LayerSpec& layer = spec_.layers[i];
      layer.attention = attention;
      if (lightning[i]) {
        layer.attention.kind = AttentionSpec::Kind::lightning;
        layer.attention.kv_heads = layer.attention.q_heads;
      }
      if (is_moe_.empty() || !is_moe_[i]) {
        layer.mlp = MlpSpec{.intermediate = intermediate_, .bias = mlp_bias_};
        continue;
      }
      layer.moe = MoeSpec{.experts = experts_[i],
                          .top_k = top_k_[i],
                          .expert_intermediate = expert_width_[i],
                          .shared_intermediate = shared_[i],
                          .shared_gate = family_.shared_gate && shared_[i] > 0,
                          .router_bias = family_.router_bias,
                          .score_correction_bias = correction,
                          .expert_bias = family_.expert_bias,
                          .scores_fp32 = family_.scores_fp32};
    }
    if (!family_.relisted.empty()) spec_.assumptions.emplace_back(family_.relisted);
  }

  void check_experts() {
    for (const LayerSpec& layer : spec_.layers) {
      if (!layer.moe || layer.moe->top_k <= layer.moe->experts) continue;
      contradiction("top_k", "top_k",
                    fmt::format("asks for {} experts per token of only {}", layer.moe->top_k, layer.moe->experts));
      diagnostics_.back().notes.push_back({place("experts"), place("experts").pointer + " is here"});
      return;
    }
  }

  void check_total() {
    std::int64_t total = 0;
    for (const ParameterDecl& parameter : spec_.parameters) total += parameter.numel;
    if (total <= limits::parameters) return;
    config_->error(config_->root_place(), "range",
                   fmt::format("the model has more than {} parameters", format_count(limits::parameters)));
  }

  /// Of a family that is not known: what its reading as Llama's layers leaves out.
  void report_unread() {
    const UnreadKeys unread = unread_dimensions(config_->unread());
    if (!unread.experts.empty())
      config_->error(
          unread.experts.front()->key_place(), "experts",
          fmt::format("experts of a family that is not known, under keys that are not read: {}",
                      pointers_of(unread.experts)),
          "state them as num_experts, num_experts_per_tok, moe_intermediate_size, n_shared_experts or "
          "shared_expert_intermediate_size, and the layers that hold them as mlp_layer_types "
          "[\"dense\", \"sparse\", ...], first_k_dense_replace or decoder_sparse_step; leave out the others");
    if (unread.layers.empty()) return;
    const auto warning = std::find_if(diagnostics_.begin(), diagnostics_.end(),
                                      [](const Diagnostic& d) { return d.code == "model.family"; });
    CHECK(warning != diagnostics_.end(), "an unknown family was told");
    warning->message += "; not read: " + pointers_of(unread.layers);
    spec_.assumptions.emplace_back("keys of the model that are not read: " + pointers_of(unread.layers));
  }

  /// Multi-token-prediction layers of a checkpoint, which transformers leaves out of the model that trains.
  void read_prediction_layers() {
    const auto layers =
        config_->integer({"num_nextn_predict_layers", "num_mtp_layers", "num_mtp_modules"}, 0, limits::layers);
    if (layers.value_or(0) > 0)
      spec_.assumptions.emplace_back(fmt::format(
          "multi-token-prediction layers of the checkpoint ({}) are not counted: transformers trains without",
          *layers));
  }

  void report_missing() {
    if (config_->missing().empty()) return;
    std::string list, help;
    for (const std::string& key : config_->missing()) {
      list += (list.empty() ? "" : ", ") + key;
      const auto similar = config_->similar_key(key);
      if (similar && *similar != key) help += fmt::format("is {} meant to be {}? ", *similar, key);
    }
    help +=
        fmt::format("state it as \"{}\": …; if only sizes are known, use --model sketch:dense=7B,hidden=4096,layers=32",
                    config_->missing().front());
    config_->error(config_->root_place(), "missing", fmt::format("the config does not state {}", list), help);
  }

  Place place(const std::string& name) const {
    const auto found = spec_.places.find(name);
    return found == spec_.places.end() ? config_->root_place() : found->second;
  }

  /// `message` goes on after the pointer of the dimension `where`.
  void contradiction(const std::string& where, std::string_view code, std::string_view message, std::string help = {}) {
    const Place at = place(where);
    config_->error(at, code, fmt::format("{} {}", at.pointer, message), std::move(help));
  }

  const Document& document_;
  ModelSpec spec_;
  Diagnostics diagnostics_;
  ModelFamily family_;
  std::optional<ConfigReader> config_;
  std::int64_t layers_ = 0, heads_ = 0, intermediate_ = 0;
  bool mlp_bias_ = false;
  std::vector<std::int64_t> experts_, top_k_, expert_width_, shared_;  ///< per layer; empty in a dense family
  std::vector<bool> is_moe_;
};

}  // namespace

Result<ModelSpec> read_model(const Document& document, std::string name) {
  return ModelReader(document, std::move(name)).read();
}

}  // namespace plimsoll
