// Reading of the sources for the tests of structure: by file name endings, line by line, without a preprocessor.
#include "tests/structure/source_tree.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

namespace plimsoll::structure {

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::vector<Source> read_sources(const std::string& root, const std::vector<std::string>& folders) {
  constexpr std::array<std::string_view, 6> endings{".cpp", ".hpp", ".h", ".cu", ".cuh", ".c"};
  std::vector<Source> sources;
  for (const std::string& folder : folders) {
    const std::filesystem::path start = std::filesystem::path(root) / folder;
    if (!std::filesystem::exists(start)) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(start)) {
      const std::string ending = entry.path().extension().string();
      if (!entry.is_regular_file() || std::find(endings.begin(), endings.end(), ending) == endings.end()) continue;
      std::ostringstream text;
      text << std::ifstream(entry.path()).rdbuf();
      sources.push_back({std::filesystem::relative(entry.path(), root).generic_string(), split_lines(text.str())});
    }
  }
  std::sort(sources.begin(), sources.end(), [](const Source& a, const Source& b) { return a.path < b.path; });
  return sources;
}

std::vector<Include> includes_of(const Source& source) {
  static const std::regex pattern(R"(^\s*#\s*include\s*(["<])([^">]+)[">])");
  std::vector<Include> includes;
  for (std::size_t i = 0; i < source.lines.size(); ++i) {
    std::smatch match;
    if (!std::regex_search(source.lines[i], match, pattern)) continue;
    includes.push_back({match[2], match[1] == "\"", static_cast<int>(i + 1)});
  }
  return includes;
}

bool below(std::string_view path, std::string_view folder) {
  return path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/');
}

}  // namespace plimsoll::structure
