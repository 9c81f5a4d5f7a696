// What does the argument of --model name: a sketch, a file, a directory or a preset?
#include <fmt/core.h>

#include <filesystem>

#include "planner/base/format.hpp"
#include "planner/base/machine_error.hpp"
#include "planner/spec/presets.hpp"
#include "planner/spec/read_model.hpp"

namespace plimsoll {
namespace {

namespace fs = std::filesystem;

Result<ModelSpec> read_file(const fs::path& file, std::string name) {
  auto document = parse_document(load_source(file.string()), Syntax::json);
  if (!document) return document.diagnostics();
  auto model = read_model(*document, std::move(name));
  Diagnostics all = document.diagnostics();
  all.insert(all.end(), model.diagnostics().begin(), model.diagnostics().end());
  if (!model || has_errors(all)) return all;
  return {*std::move(model), std::move(all)};
}

Result<ModelSpec> unknown_preset(std::string_view name) {
  const std::vector<std::string> presets = preset_names("models");
  Diagnostic diagnostic;
  diagnostic.code = "model.preset";
  diagnostic.message = fmt::format("there is neither a file nor a model preset {}", name);
  if (const auto near = nearest(name, presets)) diagnostic.help = fmt::format("did you mean {}? ", *near);
  diagnostic.help += "presets:";
  for (const std::string& preset : presets) diagnostic.help += " " + preset;
  return diagnostic;
}

}  // namespace

Result<ModelSpec> load_model(std::string_view argument) {
  if (argument.substr(0, 7) == "sketch:") return read_sketch(argument);
  const fs::path path(argument);
  std::error_code error;
  const bool is_directory = fs::is_directory(path, error);
  if (is_directory && fs::is_regular_file(path / "config.json", error)) {
    return read_file(path / "config.json", path.filename().string());
  }
  if (is_directory && !find_preset("models", argument))
    throw MachineError(fmt::format("{}: the folder holds no config.json", argument));
  const bool must_be_file = path.extension() == ".json" || argument.find('/') != std::string_view::npos;
  // A link that leads nowhere is there, and cannot be read.
  const bool is_there = fs::exists(fs::symlink_status(path, error));
  if (must_be_file && !is_there) {
    // As the Hugging Face hub names it: "meta-llama/Llama-3.1-8B".
    const auto preset = nearest(path.filename().string(), preset_names("models"));
    throw MachineError(fmt::format("{}: the file is missing or unreadable{}", argument,
                                   preset ? fmt::format("; there is a preset {}", *preset) : ""));
  }
  if (must_be_file || (!is_directory && is_there)) {
    // A downloaded config.json is named after its directory.
    const bool is_config = path.filename() == "config.json" && path.has_parent_path();
    return read_file(path, is_config ? path.parent_path().filename().string() : path.stem().string());
  }
  if (const auto preset = find_preset("models", argument)) return read_file(*preset, std::string(argument));
  return unknown_preset(argument);
}

}  // namespace plimsoll
