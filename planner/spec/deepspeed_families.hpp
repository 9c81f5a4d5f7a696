// Which model families do DeepSpeed's own features for experts know by name?
#pragma once

#include <string>
#include <string_view>

namespace plimsoll {

/// AutoEP's preset_model for a family ("mixtral", "qwen3_moe", ...); empty if it has none
/// (DeepSpeed 0.19, module_inject/auto_ep_config.py).
std::string autoep_preset(std::string_view family);

/// True if the family's MoE block is on DeepSpeed's default list of leaf modules: MixtralSparseMoeBlock,
/// Qwen2MoeSparseMoeBlock, Qwen3MoeSparseMoeBlock (DeepSpeed 0.19, runtime/zero/leaf_module_config.py).
bool is_leaf_family(std::string_view family);

}  // namespace plimsoll
