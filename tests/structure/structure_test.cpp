// Do all sources keep the arrows between the folders, the places of the heavy headers, and the shape of a file?
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/structure/rules.hpp"

namespace plimsoll::structure {
namespace {

const std::vector<Source>& project_sources() {
  static const auto sources =
      read_sources(PLIMSOLL_SOURCE_DIR, {"planner", "simulator", "calibrate", "runtime", "gui"});
  return sources;
}

/// Without the rules and their own test, which must spell what they forbid.
std::vector<Source> test_sources() {
  auto tests = read_sources(PLIMSOLL_SOURCE_DIR, {"tests"});
  std::erase_if(tests, [](const Source& source) { return below(source.path, "tests/structure"); });
  return tests;
}

/// Fails with every violation of `check` at once, so that one run names all.
void expect_kept(Violations (*check)(const Source&), const std::vector<Source>& sources) {
  Violations all;
  for (const Source& source : sources) {
    for (std::string& violation : check(source)) all.push_back(std::move(violation));
  }
  EXPECT_TRUE(all.empty()) << fmt::format("{}", fmt::join(all, "\n"));
}

TEST(Structure, SourcesAreFound) { EXPECT_GT(project_sources().size(), 5U); }

TEST(Structure, ArrowsPointDown) { expect_kept(check_arrows, project_sources()); }

TEST(Structure, HeavyHeadersStayInTheirPlaces) { expect_kept(check_heavy_headers, project_sources()); }

TEST(Structure, FilesOpenWithACommentAndStayShort) { expect_kept(check_shape, project_sources()); }

TEST(Structure, NothingMentionsOneMachine) {
  expect_kept(check_portable_text, project_sources());
  expect_kept(check_portable_text, test_sources());
}

TEST(Structure, TestsWriteWhereNoOtherTestWrites) { expect_kept(check_temporary_files, test_sources()); }

TEST(Structure, IncludedFilesExist) {
  std::vector<std::string> paths;
  for (const Source& source : project_sources()) paths.push_back(source.path);
  for (const Source& source : project_sources()) {
    for (const Include& include : includes_of(source)) {
      if (!include.quoted) continue;
      EXPECT_TRUE(std::binary_search(paths.begin(), paths.end(), include.name))
          << source.path << ":" << include.line << ": no file " << include.name;
    }
  }
}

}  // namespace
}  // namespace plimsoll::structure
