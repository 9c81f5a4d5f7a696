// How accurate are the predictions, and did they get worse?  Every figure of the measured runs in tests/data/measured, by
// kind, against the errors that were reached.  A change that improves them lowers the bounds here; none raises them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "planner/cli/validation.hpp"
#include "planner/spec/document.hpp"

namespace plimsoll {
namespace {

struct Bound {
  const char* kind;
  double mean, worst;  ///< percent
};

// Reached on 2026-11-29, in percent, rounded up.
constexpr Bound bounds[] = {
    {"allocated, peak of a steady step", 0.004, 0.06},
    {"reserved, peak of a steady step", 0.24, 5.0},
    {"device, peak of a steady step", 0.23, 4.9},
    {"allocated, end of a phase, construction", 0.001, 0.001},
    {"allocated, peak of a phase, construction", 0.001, 0.001},
    {"reserved, end of a phase, construction", 0.02, 0.3},
    {"host resident, end of a phase", 1.4, 5.5},
    {"host resident, peak of a phase", 1.5, 13},
    {"host pinned, end of a phase", 0.001, 0.002},
    {"allocated, end of a phase, first step", 0.002, 0.04},
    {"allocated, peak of a phase, first step", 0.002, 0.06},
    {"reserved, end of a phase, first step", 0.16, 2.6},
    {"allocated, end of a phase, steady step", 0.004, 0.07},
    {"allocated, peak of a phase, steady step", 0.004, 0.07},
    {"reserved, end of a phase, steady step", 0.24, 5.0},
    {"allocated, end of a phase, saving", 0.005, 0.04},
    {"allocated, peak of a phase, saving", 0.002, 0.02},
    {"checkpoint files above 1 MB", 0.001, 0.001},
    {"step time", 7.5, 39},
};

const Validation& validation() {
  static const Validation result = [] {
    std::vector<MeasuredTable> tables;
    for (const char* name : {"h200_torch", "h200_deepspeed", "h200_deepspeed_host"}) {
      tables.push_back(
          read_measured_table(load_source(fmt::format("{}/tests/data/measured/{}.json", PLIMSOLL_SOURCE_DIR, name))));
    }
    return validate(std::move(tables));
  }();
  return result;
}

TEST(Accuracy, EveryRowIsAnswered) {
  for (const Unanswered& row : validation().unanswered) ADD_FAILURE() << row.id << ": " << row.reason;
  for (const Diagnostic& diagnostic : validation().diagnostics) {
    if (diagnostic.severity == Severity::error) ADD_FAILURE() << format(diagnostic);
  }
}

TEST(Accuracy, NoFigureGotWorse) {
  const std::vector<FigureSummary> reached = summaries_by_kind(validation().rows);
  for (const FigureSummary& summary : reached) {
    const auto bound =
        std::find_if(std::begin(bounds), std::end(bounds), [&](const Bound& b) { return summary.figure == b.kind; });
    if (bound == std::end(bounds)) {
      ADD_FAILURE() << "no bound for: " << summary.figure;
      continue;
    }
    EXPECT_LE(100 * summary.mean, bound->mean) << summary.figure << ", mean of " << summary.n;
    EXPECT_LE(100 * summary.max, bound->worst) << summary.figure << ", worst: " << summary.worst;
  }
  EXPECT_EQ(reached.size(), std::size(bounds));
}

TEST(Accuracy, GivenRoutingsLieWithinTheStatedIntervals) {
  for (const Comparison& row : validation().apart) {
    if (const auto within = row.within()) {
      EXPECT_TRUE(*within) << row.id << " " << row.figure << ": " << row.measured << " beside " << row.predicted;
    }
  }
}

}  // namespace
}  // namespace plimsoll
