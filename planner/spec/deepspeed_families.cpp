// Which model families do DeepSpeed's own features for experts know by name?
#include "planner/spec/deepspeed_families.hpp"

namespace plimsoll {

std::string autoep_preset(std::string_view family) {
  if (family == "mixtral" || family == "deepseek_v2" || family == "deepseek_v3" || family == "qwen3_moe" ||
      family == "qwen3_5_moe")
    return std::string(family);
  return family == "qwen2_moe" ? "qwen3_moe" : "";
}

bool is_leaf_family(std::string_view family) {
  return family == "mixtral" || family == "qwen2_moe" || family == "qwen3_moe";
}

}  // namespace plimsoll
