// What does a person read?  The verdict first, then why, what the next best loses, what was excluded, and what decides
// (planner/cli/recommendation.hpp).
#include <fmt/format.h>

#include <algorithm>

#include "planner/base/format.hpp"
#include "planner/cli/in_words.hpp"
#include "planner/cli/recommendation.hpp"
#include "planner/cli/table.hpp"
#include "planner/cli/terminal.hpp"

namespace plimsoll {
namespace {

constexpr int width = 118;
constexpr int bar_cells = 40;

class Writer {
 public:
  explicit Writer(bool coloured) : coloured_(coloured) {}

  std::string colour(std::string_view text, Colour colour) const {
    return coloured_ ? paint(text, colour) : std::string(text);
  }
  void line(std::string_view text) { text_ += fmt::format("{}\n", text); }
  void sentence(std::string_view text) { text_ += fmt::format("  {}\n", wrap(text, width, 4)); }
  void heading(std::string_view text) { text_ += fmt::format("\n{}\n", colour(text, Colour::bold)); }
  void table(const Table& table) { text_ += table.text(2); }
  std::string take() { return std::move(text_); }

 private:
  bool coloured_;
  std::string text_;
};

void write_memory(Writer& writer, const Ledger& ledger) {
  const Bytes peak = ledger.job_device_peak.value;
  writer.line(fmt::format("  memory  {}  {}  margin {} GiB ({})", of_in_words(peak, ledger.capacity),
                          writer.colour(bar(peak / ledger.capacity, bar_cells), colour_of(ledger.gpu_verdict)),
                          gibibytes(ledger.margin),
                          writer.colour(name_of(ledger.gpu_verdict), colour_of(ledger.gpu_verdict))));
  if (ledger.host_capacity.count > 0)
    writer.line(fmt::format(
        "  host    {} a node{}", of_in_words(ledger.host_per_node, ledger.host_capacity),
        ledger.host_verdict == Verdict::fits
            ? ""
            : fmt::format(" ({})", writer.colour(name_of(ledger.host_verdict), colour_of(ledger.host_verdict)))));
}

void write_verdict(Writer& writer, const Recommendation& recommendation) {
  const Evaluation& best = *recommendation.best;
  const SimulatedStep& step = *recommendation.step;
  const Plan& plan = best.scenario.plan;
  writer.line(writer.colour(scenario_in_words(best.scenario), Colour::bold));
  write_memory(writer, best.ledger);
  writer.line(fmt::format("  time    {} a step ({} to {}; {}, {}), bound by {}", format(Seconds(step.step_time_s)),
                          format(Seconds(step.low_s)), format(Seconds(step.high_s)), recommendation.time_source,
                          name_of(step.timeline.evidence), step.timeline.bound_by));
  writer.line(fmt::format("  speed   {} tokens/s, {} a GPU, MFU {:.1f} %",
                          format_count(static_cast<std::int64_t>(step.tokens_per_s_per_gpu * plan.world_size)),
                          format_count(static_cast<std::int64_t>(step.tokens_per_s_per_gpu)), 100 * step.mfu));
  writer.line(fmt::format("  batch   {} sequences of {} tokens a step",
                          format_count(plan.micro_batch * plan.gradient_accumulation * plan.world_size),
                          format_count(plan.sequence)));
}

void write_plans(Writer& writer, const std::vector<Listed>& plans, const Recommendation& recommendation) {
  const double best = recommendation.search.best->seconds_per_token;
  Table table({{"tokens/s", Align::right},
               {"time", Align::right},
               {"GPU GiB", Align::right},
               {"GPUs", Align::right},
               {"verdict"},
               {"plan"}});
  for (const Listed& listed : plans) {
    const Found& found = listed.found;
    const Evaluated& evaluated = found.evaluated;
    const std::string difference = difference_in_words(recommendation.search.best->plan, found.plan);
    table.row({format_count(static_cast<std::int64_t>(listed.tokens_per_s)),
               fmt::format("{:+.1f} %", 100 * (found.seconds_per_token / best - 1)),
               gibibytes(evaluated.job_device_peak), fmt::format("{}", found.choice.world),
               writer.colour(name_of(evaluated.verdict), colour_of(evaluated.verdict)),
               difference.empty() ? "the recommended one" : difference});
  }
  writer.table(table);
}

void write_excluded(Writer& writer, const SearchResult& search) {
  Table table({{"plans", Align::right}, {""}});
  for (const Exclusion& exclusion : search.excluded) table.row({format_count(exclusion.count), exclusion.reason});
  writer.heading(fmt::format("Not recommended, of {} plans", format_count(search.considered)));
  writer.table(table);
}

void write_nothing_fits(Writer& writer, const Recommendation& recommendation) {
  writer.line(fmt::format("{}: {}", writer.colour("none", Colour::red), nothing_fits(recommendation.search)));
  if (recommendation.best) {
    const Ledger& ledger = recommendation.best->ledger;
    writer.heading(recommendation.search.nearest_proven ? "Nearest to fitting"
                                                        : "Near to fitting; the time was up before all were compared");
    writer.line("  " + scenario_in_words(recommendation.best->scenario));
    write_memory(writer, ledger);
    if (const std::string lack = lack_in_words(ledger); !lack.empty()) writer.line("  " + lack);
    writer.sentence(recommendation.what_helps);
  }
}

}  // namespace

std::string nothing_fits(const SearchResult& search) {
  return search.proven ? "no plan fits" : "no plan that fits was found in the time given (--seconds)";
}

std::string recommendation_text(const Recommendation& recommendation, bool coloured) {
  Writer writer(coloured);
  if (!recommendation.search.best) {
    write_nothing_fits(writer, recommendation);
    write_excluded(writer, recommendation.search);
    return writer.take();
  }
  write_verdict(writer, recommendation);
  writer.heading("Why this one");
  for (const std::string& sentence : recommendation.why) writer.sentence(sentence);
  if (recommendation.plans.size() > 1) {
    writer.heading("The next best, and what they lose");
    write_plans(writer, {recommendation.plans.begin() + 1, recommendation.plans.end()}, recommendation);
  }
  if (recommendation.front.size() > 1) {
    writer.heading("Less memory or fewer GPUs for more time");
    write_plans(writer, recommendation.front, recommendation);
  }
  write_excluded(writer, recommendation.search);
  if (!recommendation.deciding.empty()) {
    writer.heading("What decides");
    for (const std::string& sentence : recommendation.deciding) writer.sentence(sentence);
  }
  writer.heading("Rests on");
  Table table({{""}, {""}});
  for (const Assumption& assumption : assumptions_of(recommendation.best->scenario, recommendation.best->context))
    table.row({name_of(assumption.evidence), assumption.what});
  table.row({name_of(recommendation.step->timeline.evidence), recommendation.time_source});
  writer.table(table);
  return writer.take();
}

}  // namespace plimsoll
