// The terms of two evaluations (planner/cli/diff_terms.hpp).
#include "planner/cli/diff_terms.hpp"

#include <fmt/format.h>

#include <map>

#include "planner/account/volume.hpp"
#include "planner/account/work.hpp"

namespace plimsoll {
namespace {

double number(Bytes bytes) { return static_cast<double>(bytes.count); }

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

DiffTerms time_terms(const Evaluation& a, const Evaluation& b) {
  const Work of_a = account_work(a.program, a.rank_program(), a.scenario.cluster);
  const Work of_b = account_work(b.program, b.rank_program(), b.scenario.cluster);
  const auto tokens = [](const Evaluation& side, const Work& work) {
    return static_cast<double>(side.program.tokens_per_step_per_rank) / work.lower_bound.count;
  };
  return {{"compute at peak rates, s", of_a.compute_bound.count, of_b.compute_bound.count},
          {"communication at peak rates, s", of_a.communication_bound.count, of_b.communication_bound.count},
          {"step at least, s", of_a.lower_bound.count, of_b.lower_bound.count},
          {"tokens/s a GPU at most", tokens(a, of_a), tokens(b, of_b)},
          {"kernel launches", static_cast<double>(of_a.launches), static_cast<double>(of_b.launches)}};
}

}  // namespace plimsoll
