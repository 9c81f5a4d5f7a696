// Tables of recommendations, of two plans, and of a measured step (gui/models/tables.hpp).
#include <fmt/format.h>

#include <cmath>
#include <map>

#include "gui/models/tables.hpp"
#include "planner/base/format.hpp"
#include "planner/cli/in_words.hpp"

namespace plimsoll::gui {
namespace {

enum class Unit { bytes, plain };

void add_terms(TableData& table, const DiffTerms& terms, Unit unit) {
  for (const DiffTerm& term : terms) {
    if (term.a == 0 && term.b == 0) continue;
    const double difference = term.b - term.a;
    const auto cell = [&](double value, bool sign) {
      if (unit == Unit::plain)
        return TableCell{(value < 0 ? "-" : sign ? "+" : "") + figure_in_words(term, std::abs(value)), value, {}};
      TableCell bytes = cell_of_bytes(static_cast<std::int64_t>(value));
      if (sign && value > 0) bytes.text = "+" + bytes.text;
      return bytes;
    };
    table.rows.push_back(
        {{cell_of_text(name_in_words(term)),
          cell(term.a, false),
          cell(term.b, false),
          cell(difference, true),
          {term.a != 0 ? fmt::format("{:+.1f} %", 100 * difference / std::abs(term.a)) : "", difference, {}}},
         term.name});
  }
}

void add_heading(TableData& table, const char* title) {
  TableRow row;
  row.cells.resize(table.columns.size());
  row.cells.front().text = title;
  row.strong = true;
  table.rows.push_back(std::move(row));
}

}  // namespace

TableData plans_table(const std::vector<Listed>& plans) {
  TableData table{{{"GPUs", true, {}},
                   {"ZeRO", true, "stage"},
                   {"ep", true, "expert parallel"},
                   {"experts", false, {}},
                   {"micro", true, "micro-batch"},
                   {"acc", true, "gradient accumulation"},
                   {"recompute", false, {}},
                   {"offload", false, {}},
                   {"step", true, {}},
                   {"tokens/s", true, "of the whole job"},
                   {"device GiB", true, "highest over all phases of the job"},
                   {"", false, "verdict"},
                   {"why", false, {}}},
                  {}};
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const Listed& listed = plans[i];
    const Plan& plan = listed.found.plan;
    const Evaluated& evaluated = listed.found.evaluated;
    const int every = plan.recompute.every;
    const bool whole = plan.engine == Engine::deepspeed || plan.engine == Engine::plimsoll;
    table.rows.push_back({{cell_of_count(plan.world_size),
                           whole ? cell_of_count(plan.zero.stage) : cell_of_text(name_of(plan.engine)),
                           cell_of_count(plan.expert_parallel),
                           cell_of_text(name_of(plan.moe.implementation)),
                           cell_of_count(plan.micro_batch),
                           cell_of_count(plan.gradient_accumulation),
                           cell_of_text(every == 0   ? "none"
                                        : every == 1 ? "full"
                                                     : fmt::format("every {}", every)),
                           cell_of_text(name_of(plan.offload.optimizer)),
                           cell_of_seconds(evaluated.step_time_s),
                           cell_of_count(static_cast<std::int64_t>(listed.tokens_per_s)),
                           cell_of_bytes(evaluated.job_device_peak.count),
                           cell_of_text(name_of(evaluated.verdict)),
                           {listed.why, 0, listed.why}},
                          std::to_string(i)});
  }
  return table;
}

TableData exclusions_table(const SearchResult& search) {
  TableData table{{{"plans", true, {}}, {"excluded since", false, {}}}, {}};
  for (const Exclusion& exclusion : search.excluded)
    table.rows.push_back({{cell_of_count(exclusion.count), cell_of_text(exclusion.reason)}, {}});
  return table;
}

std::string recommendation_in_words(const Recommendation& recommendation) {
  if (recommendation.plans.empty()) return nothing_fits(recommendation.search);
  std::string text = scenario_in_words(recommendation.best->scenario) + "\n";
  for (const std::string& sentence : recommendation.why) text += sentence + "\n";
  for (const std::string& sentence : recommendation.deciding) text += sentence + "\n";
  return text;
}

TableData diff_table(const Answer& a, const Answer& b) {
  TableData table{{{"", false, {}}, {"A", true, {}}, {"B", true, {}}, {"B - A", true, {}}, {"", true, {}}}, {}};
  add_heading(table, "memory at the peak, GiB");
  add_terms(table, memory_terms(*a.ledger, *b.ledger), Unit::bytes);
  add_heading(table, "sent by one GPU in a step, GiB");
  add_terms(table, volume_terms(*a.evaluation, *b.evaluation), Unit::bytes);
  if (!a.step || !b.step) return table;
  add_heading(table, "time, simulated");
  add_terms(table,
            {{"step, s", a.step->step_time_s, b.step->step_time_s},
             {"tokens/s per GPU", a.step->tokens_per_s_per_gpu, b.step->tokens_per_s_per_gpu},
             {"model TFLOP/s per GPU", a.step->model_tflops_per_gpu, b.step->model_tflops_per_gpu},
             {"MFU", a.step->mfu, b.step->mfu},
             {"idle share", a.step->idle_share, b.step->idle_share}},
            Unit::plain);
  std::map<std::string, DiffTerm> waits;
  for (const auto& [cause, time] : a.step->timeline.exposed) waits[cause].a = to_seconds(time);
  for (const auto& [cause, time] : b.step->timeline.exposed) waits[cause].b = to_seconds(time);
  for (auto& [cause, term] : waits) {
    term.name = "compute waits for " + cause + ", s";
    add_terms(table, {term}, Unit::plain);
  }
  return table;
}

TableData settings_table(const Answer& a, const Answer& b) {
  TableData table{{{"setting", false, {}}, {"A", false, {}}, {"B", false, {}}}, {}};
  const auto add = [&](const std::string& name, const std::string& of_a, const std::string& of_b) {
    if (of_a != of_b) table.rows.push_back({{cell_of_text(name), cell_of_text(of_a), cell_of_text(of_b)}, name});
  };
  add("model", a.text.model, b.text.model);
  add("cluster", a.scenario->cluster.name, b.scenario->cluster.name);
  for (const auto& [key, state] : a.controls) {
    const auto other = b.controls.find(key);
    if (other != b.controls.end()) add(key, state.value, other->second.value);
  }
  return table;
}

TableData comparison_table(const TraceComparison& comparison) {
  TableData table{{{"", false, {}}, {"program", true, {}}, {"measured", true, {}}}, {}};
  const auto counts = [&](const char* name, std::int64_t mine, std::int64_t measured) {
    table.rows.push_back({{cell_of_text(name), cell_of_count(mine), cell_of_count(measured)}, {}});
  };
  counts("allocations", comparison.program_count, comparison.trace_count);
  counts("their bytes", comparison.program_bytes.count, comparison.trace_bytes.count);
  counts("alive before the step, bytes", comparison.program_live.count, comparison.trace_live.count);
  counts("peak of the step, bytes", comparison.program_peak.bytes.count, comparison.trace_peak.bytes.count);
  return table;
}

TableData differing_tensors_table(const TraceComparison& comparison) {
  TableData table{{{"", false, {}},
                   {"phase", false, {}},
                   {"count", true, {}},
                   {"bytes each", true, {}},
                   {"tensor", false, {}},
                   {"formula", false, {}}},
                  {}};
  const auto add = [&](const char* where, const std::vector<TensorGroup>& groups) {
    for (const TensorGroup& group : groups)
      table.rows.push_back({{cell_of_text(where), cell_of_text(group.phase), cell_of_count(group.count),
                             cell_of_count(group.bytes.count), cell_of_text(group.name), cell_of_text(group.formula)},
                            {}});
  };
  add("only in the program", comparison.only_in_program);
  add("only in the measured step", comparison.only_in_trace);
  add("alive at the program's peak only", comparison.only_at_program_peak);
  add("alive at the measured peak only", comparison.only_at_trace_peak);
  add("freed at another time", comparison.lifetimes);
  return table;
}

std::string comparison_in_words(const TraceComparison& comparison) {
  return fmt::format(
      "Peak error {:+.3f} %.  {} allocations of at least {} are in both, {:.2f} % of the bytes.\n"
      "The program's peak: {}, {}.  The measured one: {}, {}.",
      100 * comparison.peak_error(), comparison.matched, format(comparison.threshold), 100 * comparison.shared(),
      comparison.program_peak.phase, comparison.program_peak.tensor, comparison.trace_peak.phase,
      comparison.trace_peak.tensor);
}

}  // namespace plimsoll::gui
