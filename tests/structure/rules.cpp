// The rules as tables: a folder and what it may include, a header and where it may be included.
#include "tests/structure/rules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <regex>
#include <string_view>

namespace plimsoll::structure {
namespace {

using Names = std::vector<std::string_view>;

/// What the sources below `folder` may include; the longest matching folder counts.  Its own folder is always allowed.
struct Arrows {
  std::string_view folder;
  Names may_include;
  bool interpreter = false;  ///< knows neither model nor plan
};

/// The part of planner/cli that answers questions, without a command line (library plimsoll_answers): the GUI reads it too,
/// so that its numbers are those of --json.
const Names& answers() {
  static const Names headers = {
      "planner/cli/allocator_record.hpp",   "planner/cli/common_inputs.hpp",     "planner/cli/diff_terms.hpp",
      "planner/cli/evaluate.hpp",           "planner/cli/explain_number.hpp",    "planner/cli/in_words.hpp",
      "planner/cli/json_output.hpp",        "planner/cli/kineto_comparison.hpp", "planner/cli/ledger_rows.hpp",
      "planner/cli/record_curve.hpp",       "planner/cli/recommendation.hpp",    "planner/cli/remedy.hpp",
      "planner/cli/run_log_comparison.hpp", "planner/cli/scenario_context.hpp",  "planner/cli/simulated.hpp",
      "planner/cli/trace_comparison.hpp",   "planner/cli/volume_sums.hpp"};
  return headers;
}

Names joined(Names names, const Names& more) {
  names.insert(names.end(), more.begin(), more.end());
  return names;
}

const std::vector<Arrows>& arrows() {
  static const Names lower = {"planner/account", "planner/step", "planner/spec", "planner/base"};
  static const std::vector<Arrows> table = {
      {"planner/base", {}},
      {"planner/ranks", {"planner/base"}},
      {"planner/spec", {"planner/base"}},
      {"planner/step", {"planner/spec", "planner/base"}},
      {"planner/account", {"planner/step", "planner/spec", "planner/base"}, true},
      {"planner/search", lower},
      {"planner/cli", {"planner", "simulator"}},
      {"simulator", lower, true},
      {"runtime", joined(lower, {"planner/ranks"}), true},
      {"runtime/cli", {"planner/account", "planner/step", "planner/spec", "planner/base", "runtime"}},
      {"calibrate", {"planner/step", "planner/spec", "planner/ranks", "planner/base"}},
      {"calibrate/cli", {"calibrate", "planner/cli", "planner/step", "planner/spec", "planner/base"}},
      {"gui", joined({"planner/search", "simulator"}, joined(lower, answers()))},
  };
  return table;
}

constexpr std::array<std::string_view, 3> hidden_from_interpreters{"planner/spec/model.hpp", "planner/spec/plan.hpp",
                                                                   "planner/spec/scenario.hpp"};

/// A third-party header by the pattern of its name, and the folders or files that may include it.
struct Heavy {
  std::string_view library;
  std::regex name;
  Names places;
  bool sources_only = false;  ///< in .cpp files, never in a header
};

const std::vector<Heavy>& heavy_headers() {
  static const std::vector<Heavy> table = {
      {"nlohmann",
       std::regex("^nlohmann/"),
       {"planner/spec", "planner/cli", "simulator", "calibrate", "runtime/cli"},
       true},
      {"Boost", std::regex("^boost/"), {"planner/spec/topology.cpp", "planner/step/verify_step.cpp"}},
      {"Eigen", std::regex("^(unsupported/)?Eigen/"), {"calibrate/fit", "calibrate/bench", "runtime/host"}},
      {"CLI11", std::regex("^CLI/"), {"planner/cli", "calibrate/cli", "runtime/cli", "gui"}},
      {"Qt", std::regex("^Q([A-Z]|t)"), {"gui"}},
      {"CUDA",
       std::regex("^(cuda|cublas|cudnn|curand|nvtx|nvml|driver_types|device_launch)"),
       {"calibrate/bench", "runtime/cuda"}},
      {"NCCL", std::regex("^nccl"), {"calibrate/bench", "runtime/cuda"}},
      {"MPI", std::regex("^mpi\\.h$"), {"calibrate/bench", "runtime"}},
      {"Google Benchmark", std::regex("^benchmark/"), {"calibrate/bench"}},
      {"GoogleTest", std::regex("^g(test|mock)/"), {}},
  };
  return table;
}

const Arrows* arrows_of(std::string_view path) {
  const Arrows* best = nullptr;
  for (const Arrows& entry : arrows()) {
    if (below(path, entry.folder) && (!best || entry.folder.size() > best->folder.size())) best = &entry;
  }
  return best;
}

bool below_any(std::string_view path, const Names& folders) {
  return std::any_of(folders.begin(), folders.end(), [&](std::string_view folder) { return below(path, folder); });
}

std::string in_words(const Names& names) {
  return names.empty() ? "nothing else" : fmt::format("{}", fmt::join(names, ", "));
}

std::string at(const Source& source, std::size_t line, const std::string& rule) {
  return fmt::format("{}:{}: {}", source.path, line, rule);
}

bool is_header(std::string_view path) {
  return path.ends_with(".hpp") || path.ends_with(".h") || path.ends_with(".cuh");
}

}  // namespace

Violations check_arrows(const Source& source) {
  const Arrows* rule = arrows_of(source.path);
  if (!rule)
    return {at(source, 1, "lies in no folder of the design; say in tests/structure/rules.cpp what it may include")};
  Violations violations;
  for (const Include& include : includes_of(source)) {
    const auto line = static_cast<std::size_t>(include.line);
    if (!include.quoted) {
      if (arrows_of(include.name)) violations.push_back(at(source, line, "our own headers are included with quotes"));
      continue;
    }
    if (!arrows_of(include.name)) {
      violations.push_back(at(source, line, fmt::format("\"{}\" is not a path from the root", include.name)));
    } else if (!below(include.name, rule->folder) && !below_any(include.name, rule->may_include)) {
      violations.push_back(at(source, line,
                              fmt::format("{} may not include {}: besides itself it may use {}", rule->folder,
                                          include.name, in_words(rule->may_include))));
    }
    const auto& hidden = hidden_from_interpreters;
    if (rule->interpreter && std::find(hidden.begin(), hidden.end(), include.name) != hidden.end()) {
      violations.push_back(at(source, line,
                              fmt::format("{} is an interpreter: it reads the step program and may not include {}",
                                          rule->folder, include.name)));
    }
  }
  return violations;
}

Violations check_heavy_headers(const Source& source) {
  Violations violations;
  const bool base = below(source.path, "planner/base");
  for (const Include& include : includes_of(source)) {
    if (include.quoted) continue;
    const auto line = static_cast<std::size_t>(include.line);
    // Names of the standard library have neither a folder nor an ending; C's own headers are spelt <cstdio>.
    if (base && include.name.find_first_of("/.") != std::string::npos && !include.name.starts_with("fmt/")) {
      violations.push_back(
          at(source, line,
             fmt::format("planner/base includes the standard library and {{fmt}} only, not <{}>", include.name)));
    }
    for (const Heavy& heavy : heavy_headers()) {
      if (!std::regex_search(include.name, heavy.name)) continue;
      if (!below_any(source.path, heavy.places)) {
        violations.push_back(at(
            source, line, fmt::format("{} is a heavy header, allowed in: {}", heavy.library, in_words(heavy.places))));
      } else if (heavy.sources_only && is_header(source.path)) {
        violations.push_back(
            at(source, line, fmt::format("{} is a heavy header, allowed in .cpp files only", heavy.library)));
      }
    }
  }
  return violations;
}

Violations check_shape(const Source& source) {
  constexpr std::size_t most_lines = 450;
  static const std::regex conditional(R"(^\s*#\s*(if|ifdef|ifndef|elif)\b.*(CUDA|NCCL|QT|Qt))");
  Violations violations;
  if (source.lines.empty() || !source.lines.front().starts_with("//")) {
    violations.push_back(at(source, 1, "a source opens with a comment: the question it answers"));
  }
  if (source.lines.size() > most_lines) {
    violations.push_back(at(source, most_lines + 1,
                            fmt::format("{} lines; at most {}: split the file", source.lines.size(), most_lines)));
  }
  if (is_header(source.path) &&
      std::find(source.lines.begin(), source.lines.end(), "#pragma once") == source.lines.end()) {
    violations.push_back(at(source, 1, "a header has #pragma once"));
  }
  for (std::size_t i = 0; i < source.lines.size(); ++i) {
    if (std::regex_search(source.lines[i], conditional)) {
      violations.push_back(
          at(source, i + 1, "a missing CUDA, NCCL or Qt is a missing target, never a conditional in the source"));
    }
  }
  return violations;
}

Violations check_portable_text(const Source& source) {
  static const std::regex local(R"((^|[^A-Za-z0-9_.])(/(work|home|root|Users|mnt)/[A-Za-z0-9_]|\.\./shared|[A-Z]:\\))");
  Violations violations;
  for (std::size_t i = 0; i < source.lines.size(); ++i) {
    if (std::regex_search(source.lines[i], local))
      violations.push_back(at(source, i + 1, "mentions a path of one machine"));
  }
  return violations;
}

Violations check_temporary_files(const Source& source) {
  static const std::regex shared(R"(\b(TempDir|temp_directory_path|tmpnam|tempnam)\b|"/tmp/)");
  Violations violations;
  if (source.path == "tests/support/temporary_folder.hpp") return violations;
  for (std::size_t i = 0; i < source.lines.size(); ++i) {
    if (std::regex_search(source.lines[i], shared))
      violations.push_back(at(source, i + 1, "another test may write there too; take a TemporaryFolder"));
  }
  return violations;
}

}  // namespace plimsoll::structure
