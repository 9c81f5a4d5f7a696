// From the text of a scenario to what the command line takes (gui/session/scenario_text.hpp).
#include "gui/session/scenario_text.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace plimsoll::gui {
namespace {

std::string quoted(const std::string& word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("-_./=,:+").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string offload_name(OffloadDevice device) { return name_of(device); }

}  // namespace

InputOptions options_of(const ScenarioText& text) {
  InputOptions options;
  options.model = text.model;
  options.cluster = text.cluster;
  if (text.nodes > 0) options.nodes = std::to_string(text.nodes);
  (text.is_ds_config ? options.ds : options.plan) = text.plan_file;
  for (const auto& [key, value] : text.settings) options.sets.push_back(fmt::format("{}={}", key, value));
  return options;
}

std::string command_line_of(const ScenarioText& text, const std::string& command) {
  std::string line =
      fmt::format("plimsoll {} --model {} --cluster {}", command, quoted(text.model), quoted(text.cluster));
  if (text.nodes > 0) line += fmt::format(" --nodes {}", text.nodes);
  if (!text.plan_file.empty())
    line += fmt::format(" {} {}", text.is_ds_config ? "--ds" : "--plan", quoted(text.plan_file));
  for (const auto& [key, value] : text.settings)
    line += fmt::format(" --set {}", quoted(fmt::format("{}={}", key, value)));
  return line;
}

Settings settings_of_plan(const Plan& plan) {
  Settings settings = {{"world_size", std::to_string(plan.world_size)},
                       {"expert_parallel", std::to_string(plan.expert_parallel)},
                       {"micro_batch", std::to_string(plan.micro_batch)},
                       {"gradient_accumulation", std::to_string(plan.gradient_accumulation)},
                       {"moe.implementation", name_of(plan.moe.implementation)},
                       {"moe.leaf", plan.moe.leaf ? "true" : "false"}};
  const int every = plan.recompute.every;
  settings["recompute"] = every == 0 ? "none" : every == 1 ? "full" : fmt::format("{{\"every\":{}}}", every);
  if (plan.engine == Engine::deepspeed) {
    settings["zero.stage"] = std::to_string(plan.zero.stage);
    settings["offload.optimizer"] = offload_name(plan.offload.optimizer);
    settings["offload.parameters"] = offload_name(plan.offload.parameters);
    settings["optimizer.implementation"] = name_of(plan.optimizer.implementation);
    if (plan.zero.stage > 0) settings["zero.reduce_bucket_size"] = std::to_string(plan.zero.reduce_bucket_size);
    if (plan.zero.stage == 3) {
      settings["zero.stage3_prefetch_bucket_size"] = std::to_string(plan.zero.stage3_prefetch_bucket_size);
      settings["zero.stage3_max_live_parameters"] = std::to_string(plan.zero.stage3_max_live_parameters);
      settings["zero.stage3_max_reuse_distance"] = std::to_string(plan.zero.stage3_max_reuse_distance);
    }
  }
  if (plan.engine == Engine::fsdp2) {
    settings["fsdp.reshard_after_forward"] = plan.fsdp.reshard_after_forward ? "true" : "false";
    settings["fsdp.replicate"] = std::to_string(plan.fsdp.replicate);
  }
  return settings;
}

Settings merged(const Settings& over, Settings under) {
  for (const auto& [key, value] : over) under[key] = value;
  return under;
}

std::string key_of_pointer(const std::string& pointer) {
  std::string key = pointer.substr(std::min<std::size_t>(1, pointer.size()));
  std::replace(key.begin(), key.end(), '/', '.');
  return key;
}

}  // namespace plimsoll::gui
