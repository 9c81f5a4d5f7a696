// Which layers hold experts, which attend how?  The rules by family: configs/README.md.
#include "planner/spec/layer_pattern.hpp"

#include <fmt/core.h>

#include <optional>
#include <string>

#include "planner/spec/limits.hpp"

namespace plimsoll {
namespace {

/// True at the layers that a key lists; entries beyond the last layer name none.
std::vector<bool> listed_layers(ConfigReader& config, std::string_view key, std::int64_t layers) {
  std::vector<bool> listed(static_cast<std::size_t>(layers), false);
  const auto entries = config.integers(key, 0, limits::layers);
  if (!entries) return listed;
  for (const std::int64_t layer : *entries) {
    if (layer < layers) listed[static_cast<std::size_t>(layer)] = true;
  }
  return listed;
}

/// transformers 5 lists what the other keys say: "dense", or "sparse" or another kind of mixture.
std::optional<std::vector<bool>> stated_layers(ConfigReader& config, std::int64_t layers) {
  constexpr std::string_view key = "mlp_layer_types";
  const auto kinds = config.strings(key);
  if (!kinds || kinds->empty()) return std::nullopt;
  if (static_cast<std::int64_t>(kinds->size()) != layers) {
    config.error(
        config.find({key})->place(), "length",
        fmt::format("/{} has {} entries, must have one for each of the {} layers", key, kinds->size(), layers));
    return std::nullopt;
  }
  std::vector<bool> is_moe;
  for (const std::string& kind : *kinds) is_moe.push_back(kind != "dense");
  return is_moe;
}

}  // namespace

std::vector<bool> expert_layers(ConfigReader& config, const ModelFamily& family, std::int64_t layers,
                                const std::vector<std::int64_t>& experts) {
  using Rule = ModelFamily::MoeLayers;
  constexpr std::int64_t most = limits::layers;
  const Rule rule = family.moe_layers;
  const std::int64_t step = config.integer({"decoder_sparse_step"}, 1, most).value_or(1);
  const std::int64_t first = config.integer({"first_k_dense_replace"}, 0, most).value_or(family.first_dense_default);
  const std::int64_t every = config.integer({"moe_layer_freq"}, 1, most).value_or(1);
  const std::int64_t interleave = config.integer({"interleave_moe_layer_step"}, 1, most).value_or(1);
  const std::int64_t skipped = config.integer({"moe_layer_num_skipped"}, 0, most).value_or(0);
  const auto stated = stated_layers(config, layers);
  const bool is_listed = rule == Rule::interleaved && config.has({"moe_layers"});
  const std::vector<bool> listed = listed_layers(config, is_listed ? "moe_layers" : "mlp_only_layers", layers);
  std::vector<bool> is_moe(static_cast<std::size_t>(layers), false);
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const auto i = static_cast<std::size_t>(layer);
    bool moe = false;
    switch (rule) {
      case Rule::none: break;
      case Rule::all: moe = true; break;
      case Rule::sparse_step: moe = (layer + 1) % step == 0 && !listed[i]; break;
      case Rule::after_first: moe = layer >= first && layer % every == 0; break;
      case Rule::interleaved: moe = is_listed ? listed[i] : (layer + 1) % interleave == 0; break;
      case Rule::after_skipped: moe = layer >= skipped; break;
    }
    is_moe[i] = (stated ? (*stated)[i] : moe) && experts[i] > 0;
  }
  return is_moe;
}

std::vector<bool> lightning_layers(ConfigReader& config, const ModelFamily& family, std::int64_t layers,
                                   std::vector<std::string>& assumptions) {
  std::vector<bool> lightning(static_cast<std::size_t>(layers), false);
  if (!family.lightning_attention) return lightning;
  const Node* types = config.array("attn_type_list");
  if (types == nullptr) types = config.array("layer_types");
  if (types == nullptr) {
    assumptions.emplace_back("attn_type_list is not stated: seven layers of lightning attention to one of softmax");
    for (std::size_t i = 0; i < lightning.size(); ++i) lightning[i] = i % 8 != 7;
    return lightning;
  }
  if (types->items().size() != lightning.size()) {
    config.error(types->place(), "length",
                 fmt::format("{} has {} entries, must have one for each of the {} layers", types->pointer(),
                             types->items().size(), layers));
    return lightning;
  }
  for (std::size_t i = 0; i < lightning.size(); ++i) {
    const Node& type = *types->items()[i];
    lightning[i] = (type.kind() == Node::Kind::integer && type.as_int() == 0) ||
                   (type.is_string() && type.as_string() == "linear_attention");
  }
  return lightning;
}

}  // namespace plimsoll
