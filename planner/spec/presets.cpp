// Where are the presets?
#include "planner/spec/presets.hpp"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <system_error>

namespace plimsoll {
namespace {

namespace fs = std::filesystem;

/// Letters, digits, '.', '-' and '_': nothing that leads out of the directory.
bool is_plain_word(std::string_view name) {
  return !name.empty() && name.front() != '.' && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
  });
}

}  // namespace

std::vector<fs::path> config_directories() {
  std::vector<fs::path> candidates;
  if (const char* stated = std::getenv("PLIMSOLL_CONFIGS"); stated != nullptr && *stated != '\0') {
    candidates.emplace_back(stated);
  }
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) candidates.push_back(program.parent_path().parent_path() / "share" / "plimsoll" / "configs");
  candidates.emplace_back(PLIMSOLL_SOURCE_CONFIGS);
  std::vector<fs::path> directories;
  for (const fs::path& candidate : candidates) {
    if (fs::is_directory(candidate, error)) directories.push_back(candidate);
  }
  return directories;
}

std::optional<fs::path> find_preset(std::string_view kind, std::string_view name) {
  if (!is_plain_word(name)) return std::nullopt;
  for (const fs::path& directory : config_directories()) {
    fs::path file = directory / kind / (std::string(name) + ".json");
    std::error_code error;
    if (fs::is_regular_file(file, error)) return file;
  }
  return std::nullopt;
}

std::vector<std::string> preset_names(std::string_view kind) {
  std::set<std::string> names;
  for (const fs::path& directory : config_directories()) {
    std::error_code error;
    for (fs::directory_iterator entry(directory / kind, error), end; !error && entry != end; entry.increment(error)) {
      if (entry->path().extension() == ".json") names.insert(entry->path().stem().string());
    }
  }
  return {names.begin(), names.end()};
}

}  // namespace plimsoll
