// The terms of two evaluations (planner/cli/diff_terms.hpp).
#include "planner/cli/diff_terms.hpp"

#include <fmt/format.h>

#include <cmath>
#include <map>

#include "planner/account/volume.hpp"
#include "planner/account/work.hpp"
#include "planner/base/format.hpp"
#include "simulator/timeline.hpp"

namespace plimsoll {
namespace {

double number(Bytes bytes) { return static_cast<double>(bytes.count); }

/// That its name ends in; only times have one.
std::string_view unit_of(const DiffTerm& term) {
  constexpr std::string_view seconds = ", s";
  return term.name.ends_with(seconds) ? seconds : "";
}

}  // namespace

DiffTerms memory_terms(const Ledger& a, const Ledger& b) {
  DiffTerms terms;
  for (int i = 0; i < category_count; ++i) {
    const auto c = static_cast<std::size_t>(i);
    terms.push_back({name_of(static_cast<Category>(i)), number(a.replay.categories_at_peak[c]),
                     number(b.replay.categories_at_peak[c])});
  }
  const auto add = [&](const char* name, Bytes of_a, Bytes of_b) {
    terms.push_back({name, number(of_a), number(of_b)});
  };
  add("allocator_slack", a.replay.slack_at_peak, b.replay.slack_at_peak);
  add("allocated peak", a.allocated_peak.value, b.allocated_peak.value);
  add("reserved peak", a.reserved_peak.value, b.reserved_peak.value);
  add("outside the framework", a.outside.total(), b.outside.total());
  add("device peak", a.device_peak.value, b.device_peak.value);
  add("device peak of the job", a.job_device_peak.value, b.job_device_peak.value);
  add("margin", a.margin, b.margin);
  add("resident between steps", a.replay.resident, b.replay.resident);
  add("host memory of a node", a.host_per_node, b.host_per_node);
  return terms;
}

DiffTerms volume_terms(const Evaluation& a, const Evaluation& b) {
  std::map<std::string, DiffTerm> sums;
  const auto sum_up = [&](const Evaluation& side, double DiffTerm::*member) {
    for (const VolumeRow& row : account_volume(side.program, side.rank_program(), side.scenario.cluster).rows) {
      const std::string name = fmt::format("{} {} {}", row.kind, row.group, name_of(row.tier));
      DiffTerm& term = sums[name];
      term.name = name;
      term.*member += number(row.wire);
    }
  };
  sum_up(a, &DiffTerm::a);
  sum_up(b, &DiffTerm::b);
  DiffTerms terms;
  for (auto& [name, term] : sums) terms.push_back(std::move(term));
  return terms;
}

DiffTerms time_terms(const Evaluation& a, const Evaluation& b, const Calibration& of_a, const Calibration& of_b) {
  const Timeline first = simulate_step(a.program, a.scenario.cluster, of_a),
                 second = simulate_step(b.program, b.scenario.cluster, of_b);
  const auto tokens = [](const Evaluation& side, const Timeline& timeline) {
    return static_cast<double>(side.program.tokens_per_step_per_rank) / to_seconds(timeline.step_time);
  };
  DiffTerms terms{{"step, s", to_seconds(first.step_time), to_seconds(second.step_time)},
                  {"tokens/s a GPU", tokens(a, first), tokens(b, second)},
                  {"device idle, s", to_seconds(first.idle), to_seconds(second.idle)}};
  std::map<std::string, DiffTerm> waits;
  for (const auto& [cause, time] : first.exposed) waits[cause].a = to_seconds(time);
  for (const auto& [cause, time] : second.exposed) waits[cause].b = to_seconds(time);
  for (auto& [cause, term] : waits) {
    term.name = "compute waits for " + (cause == "bubble" ? "slower ranks" : cause) + ", s";
    terms.push_back(std::move(term));
  }
  const auto launches = [](const Evaluation& side) {
    return static_cast<double>(account_work(side.program, side.rank_program(), side.scenario.cluster).launches);
  };
  terms.push_back({"kernel launches", launches(a), launches(b)});
  return terms;
}

std::string name_in_words(const DiffTerm& term) { return term.name.substr(0, term.name.size() - unit_of(term).size()); }

std::string figure_in_words(const DiffTerm& term, double value) {
  if (!unit_of(term).empty()) return format(Seconds(value));
  return std::abs(value) < 1000 ? fmt::format("{:.4g}", value) : format_count(std::llround(value));
}

std::string change_in_words(const DiffTerm& term, double least) {
  if (term.a < least || term.a <= 0 || term.b < 0) return {};
  const double ratio = term.b / term.a;
  if (ratio >= 10) return fmt::format("{:.0f} x", ratio);
  const double tenths = std::round(1000 * (ratio - 1)) + 0.0;  // what rounds to nothing has no minus
  return fmt::format("{:+.1f} %", tenths / 10);
}

}  // namespace plimsoll
