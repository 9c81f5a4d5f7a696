// Gathering the sizes that inputs state, also where they are no whole scenario (planner/cli/oom_sizes.hpp).
#include "planner/cli/oom_sizes.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>

#include "planner/base/format.hpp"
#include "planner/spec/document.hpp"
#include "planner/spec/presets.hpp"

namespace plimsoll {
namespace {

/// Keys of a config.json, as transformers and other trainers write them.
const std::map<std::string_view, Letter>& config_keys() {
  static const std::map<std::string_view, Letter> keys = {
      {"vocab_size", Letter::V},
      {"padded_vocab_size", Letter::V},
      {"hidden_size", Letter::h},
      {"d_model", Letter::h},
      {"n_embd", Letter::h},
      {"dim", Letter::h},
      {"intermediate_size", Letter::I},
      {"ffn_dim", Letter::I},
      {"n_inner", Letter::I},
      {"intermediate_size_mlp", Letter::I},
      {"moe_intermediate_size", Letter::F},
      {"ffn_hidden_size", Letter::F},
      {"num_experts", Letter::E},
      {"num_local_experts", Letter::E},
      {"n_routed_experts", Letter::E},
      {"moe_num_experts", Letter::E},
      {"num_experts_per_tok", Letter::k},
      {"experts_per_token", Letter::k},
      {"moe_top_k", Letter::k},
      {"num_hidden_layers", Letter::Lm},
      {"n_layer", Letter::Lm},
      {"num_layers", Letter::Lm},
      {"num_attention_heads", Letter::A},
      {"n_head", Letter::A},
      {"num_heads", Letter::A},
      {"num_key_value_heads", Letter::K},
      {"num_kv_heads", Letter::K},
      {"head_dim", Letter::d},
      {"d_kv", Letter::d},
  };
  return keys;
}

/// What a plan states, as text by dotted key; plans that no engine here could build are read as well.
class StatedPlan {
 public:
  void take_file(const Node& object, const std::string& path = {}) {
    if (!object.is_object()) return;
    for (const Node::Member& member : object.members()) {
      const std::string key = path.empty() ? member.key : path + "." + member.key;
      if (member.value->is_object()) take_file(*member.value, key);
      values_[key] = member.value->is_string() ? member.value->as_string() : std::string(member.value->source());
    }
  }
  void take_set(const std::string& set) {
    const std::size_t equals = set.find('=');
    if (equals != std::string::npos) values_[set.substr(0, equals)] = set.substr(equals + 1);
  }

  std::optional<std::string> text(std::initializer_list<const char*> keys) const {
    for (const char* key : keys) {
      const auto found = values_.find(key);
      if (found != values_.end()) return found->second;
    }
    return std::nullopt;
  }
  std::optional<double> number(std::initializer_list<const char*> keys) const {
    const auto found = text(keys);
    double value = 0;
    if (!found) return std::nullopt;
    const auto [end, failed] = std::from_chars(found->data(), found->data() + found->size(), value);
    if (failed != std::errc() || end != found->data() + found->size() || !(value > 0)) return std::nullopt;
    return value;
  }

 private:
  std::map<std::string, std::string> values_;
};

void take_plan(const StatedPlan& plan, KnownSizes& sizes, double& tensor_parallel, double& pipeline_parallel) {
  const auto take = [&](Letter letter, std::initializer_list<const char*> keys) {
    if (const auto value = plan.number(keys)) sizes.set(letter, *value);
  };
  take(Letter::b, {"micro_batch", "train_micro_batch_size_per_gpu"});
  take(Letter::S, {"sequence"});
  take(Letter::B, {"zero.reduce_bucket_size", "zero_optimization.reduce_bucket_size"});
  take(Letter::G, {"zero.allgather_bucket_size", "zero_optimization.allgather_bucket_size"});
  take(Letter::Q, {"zero.stage3_prefetch_bucket_size", "zero_optimization.stage3_prefetch_bucket_size"});
  take(Letter::U, {"zero.sub_group_size", "zero_optimization.sub_group_size"});
  if (const auto stage = plan.text({"zero.stage", "zero_optimization.stage"}); stage && stage->size() == 1)
    sizes.stage = stage->front() - '0';
  if (plan.text({"engine"}) == "fsdp2") sizes.stage = 3;
  if (plan.text({"engine"}) == "ddp") sizes.stage = 0;
  if (const auto offload = plan.text({"offload.optimizer", "zero_optimization.offload_optimizer.device"}))
    sizes.offload_optimizer = *offload != "none";
  if (plan.text({"trainable", "trainable.lora.rank"})) sizes.lora = plan.text({"trainable.lora.rank"}).has_value();
  sizes.attention = plan.text({"attention"});
  tensor_parallel = plan.number({"tensor_parallel"}).value_or(1);
  pipeline_parallel = plan.number({"pipeline_parallel"}).value_or(1);
}

/// A plan that was read whole states all of them.
void take_whole_plan(const Plan& plan, KnownSizes& sizes) {
  sizes.set(Letter::b, static_cast<double>(plan.micro_batch));
  sizes.set(Letter::S, static_cast<double>(plan.sequence));
  if (plan.engine == Engine::deepspeed) {
    sizes.set(Letter::B, static_cast<double>(plan.zero.reduce_bucket_size));
    sizes.set(Letter::G, static_cast<double>(plan.zero.allgather_bucket_size));
    sizes.set(Letter::Q, static_cast<double>(plan.zero.stage3_prefetch_bucket_size));
    sizes.set(Letter::U, static_cast<double>(plan.zero.sub_group_size));
  }
  sizes.stage = plan.engine == Engine::fsdp2 ? 3 : plan.engine == Engine::ddp ? 0 : plan.zero.stage;
  sizes.offload_optimizer = plan.offload.optimizer != OffloadDevice::none;
  sizes.lora = plan.lora.has_value();
  sizes.attention = name_of(plan.attention);
}

void take_config(const Node& config, KnownSizes& sizes) {
  if (!config.is_object()) return;
  for (const Node::Member& member : config.members()) {
    const auto known = config_keys().find(member.key);
    if (member.key == "kv_lora_rank" && member.value->is_number()) sizes.latent_attention = true;
    if (known != config_keys().end() && member.value->is_number() && member.value->as_double() > 0) {
      sizes.set(known->second, member.value->as_double());
    } else if (member.value->is_object()) {
      take_config(*member.value, sizes);  // text_config, ffn_config
    }
  }
}

/// The config.json that --model names, whether it can be read whole or not.
Result<std::optional<Document>> config_of(const std::string& argument) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path path(argument);
  if (fs::is_directory(path, error)) path /= "config.json";
  if (!fs::is_regular_file(path, error)) {
    const auto preset = find_preset("models", argument);
    if (!preset) return std::optional<Document>();
    path = *preset;
  }
  auto document = parse_document(load_source(path.string()), Syntax::json);
  if (!document) return document.diagnostics();
  return std::optional<Document>(*document);
}

/// "13897000000", "13.897B", "7e9"; the tolerance is half a unit of the last digit that is not an ending zero.
bool take_parameters(const std::string& typed, KnownSizes& sizes) {
  const std::optional<double> value = parse_count(typed);
  if (!value || *value < 1 || *value > 1e15) return false;
  std::string mantissa;  // what stands before an exponent or a letter for thousands
  for (const char c : typed.substr(0, typed.find_first_not_of("0123456789., _")))
    if (c == '.' || (c >= '0' && c <= '9')) mantissa += c;
  double unit = *value / std::stod(mantissa);
  const std::size_t point = mantissa.find('.');
  if (point != std::string::npos) {
    unit *= std::pow(10.0, -static_cast<double>(mantissa.size() - point - 1));
  } else {
    const std::size_t zeros = mantissa.size() - 1 - std::min(mantissa.find_last_not_of('0'), mantissa.size() - 1);
    unit *= std::pow(10.0, static_cast<double>(zeros));
  }
  sizes.set(Letter::P, *value);
  sizes.parameters_tolerance = 0.5 * unit / *value;
  return true;
}

/// Those sizes that follow from others.
void derive(KnownSizes& sizes, double ranks, double expert_parallel, double tensor_parallel, double pipeline_parallel) {
  if (ranks > 0) sizes.set(Letter::N, std::max(1.0, std::floor(ranks / (tensor_parallel * pipeline_parallel))));
  if (const auto p = sizes[Letter::P]) sizes.set(Letter::P, *p / (tensor_parallel * pipeline_parallel));
  if (const auto layers = sizes[Letter::Lm]) sizes.set(Letter::Lm, std::ceil(*layers / pipeline_parallel));
  if (sizes[Letter::E] && !sizes[Letter::F] && sizes[Letter::I]) sizes.set(Letter::F, *sizes[Letter::I]);
  if (const auto experts = sizes[Letter::E]) sizes.set(Letter::El, std::ceil(*experts / expert_parallel));
  if (!sizes[Letter::d] && sizes[Letter::h] && sizes[Letter::A])
    sizes.set(Letter::d, std::floor(*sizes[Letter::h] / *sizes[Letter::A]));
  if (!sizes[Letter::K] && sizes[Letter::A]) sizes.set(Letter::K, *sizes[Letter::A]);
  if (sizes[Letter::A] && sizes[Letter::K] && sizes[Letter::d] && !sizes.latent_attention) {
    const double head = *sizes[Letter::d];
    sizes.set(Letter::q, *sizes[Letter::A] * head);
    sizes.set(Letter::kv, *sizes[Letter::K] * head);
    sizes.set(Letter::J, (*sizes[Letter::A] + 2 * *sizes[Letter::K]) * head);
  }
  if (sizes[Letter::b] && sizes[Letter::S]) sizes.set(Letter::T, *sizes[Letter::b] * *sizes[Letter::S]);
}

}  // namespace

const char* name_of(Letter letter) {
  static constexpr std::array<const char*, letter_count> names = {"P", "N",  "V", "h", "I", "F", "E",  "El",
                                                                  "k", "Lm", "A", "K", "d", "b", "S",  "T",
                                                                  "B", "G",  "Q", "U", "W", "q", "kv", "(A+2K)d"};
  return names[static_cast<std::size_t>(letter)];
}

void take_model(const ModelSpec& model, KnownSizes& sizes) {
  sizes.set(Letter::P, static_cast<double>(count_parameters(model).total));
  const auto take = [&](Letter letter, std::int64_t value) {
    if (value > 0) sizes.set(letter, static_cast<double>(value));
  };
  take(Letter::V, model.vocab);
  take(Letter::h, model.hidden);
  std::int64_t moe_layers = 0;
  for (const LayerSpec& layer : model.layers) {
    if (layer.attention.kind == AttentionSpec::Kind::latent) sizes.latent_attention = true;
    take(Letter::A, layer.attention.q_heads);
    take(Letter::K, layer.attention.kv_heads);
    take(Letter::d, layer.attention.head_dim);
    if (layer.mlp) take(Letter::I, layer.mlp->intermediate);
    if (!layer.moe) continue;
    ++moe_layers;
    take(Letter::E, layer.moe->experts);
    take(Letter::k, layer.moe->top_k);
    take(Letter::F, layer.moe->expert_intermediate);
  }
  take(Letter::Lm, moe_layers);
  std::int64_t of_layer = 0;
  for (const ParameterDecl& parameter : model.parameters) {
    if (parameter.layer >= 0 && parameter.layer == static_cast<int>(model.layers.size()) - 1)
      of_layer += parameter.numel;
  }
  take(Letter::W, of_layer);
}

Result<KnownSizes> known_sizes(const Inputs& inputs, const std::string& parameters) {
  const InputOptions& options = inputs.options();
  KnownSizes sizes;
  StatedPlan plan;
  for (const std::string& path : {options.plan, options.ds}) {
    if (path.empty()) continue;
    const auto document = parse_document(load_source(path), Syntax::hjson);
    if (!document) return document.diagnostics();
    plan.take_file(document->root());
  }
  for (const std::string& set : options.sets) {
    if (set.find('=') == std::string::npos)
      return make_error("cli.set", fmt::format("--set {} has no value", set), "KEY=VALUE, for example micro_batch=2");
    plan.take_set(set);
  }
  double tensor_parallel = 1, pipeline_parallel = 1;
  take_plan(plan, sizes, tensor_parallel, pipeline_parallel);
  if (inputs.model()) {
    take_model(*inputs.model(), sizes);
  } else if (!options.model.empty()) {
    const auto config = config_of(options.model);
    if (!config) return config.diagnostics();
    if (*config) take_config((*config)->root(), sizes);
  }
  if (!parameters.empty() && !take_parameters(parameters, sizes))
    return make_error("cli.parameters", fmt::format("--parameters {} is no number of parameters", parameters),
                      "for example 13897000000 or 13.9B");
  double ranks = plan.number({"world_size"}).value_or(0);
  double expert_parallel = plan.number({"expert_parallel"}).value_or(1);
  if (inputs.gpus()) ranks = *inputs.gpus();
  if (ranks == 0 && inputs.cluster()) ranks = inputs.cluster()->world();
  if (inputs.model() && inputs.cluster() && !has_errors(inputs.diagnostics())) {
    const Plan& whole = *inputs.report().plan;
    take_whole_plan(whole, sizes);
    ranks = whole.world_size;
    expert_parallel = whole.expert_parallel;
  }
  derive(sizes, ranks, expert_parallel, tensor_parallel, pipeline_parallel);
  return sizes;
}

}  // namespace plimsoll
