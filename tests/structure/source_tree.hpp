// Which sources does the project have, and what do their lines say?  Read once, from the folder that CMake was given.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace plimsoll::structure {

struct Source {
  std::string path;  ///< from the root: "planner/spec/plan.hpp"
  std::vector<std::string> lines;
};

/// One #include line.
struct Include {
  std::string name;  ///< without quotes or brackets: "planner/base/check.hpp", "vector"
  bool quoted = false;
  int line = 0;  ///< from 1
};

/// C++ and CUDA sources below `folders` of `root`, sorted by path.  A folder that does not exist yet has none.
std::vector<Source> read_sources(const std::string& root, const std::vector<std::string>& folders);

std::vector<std::string> split_lines(const std::string& text);

std::vector<Include> includes_of(const Source& source);

/// True if `path` is `folder` or lies below it.
bool below(std::string_view path, std::string_view folder);

}  // namespace plimsoll::structure
