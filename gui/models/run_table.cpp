// A run beside its prediction (gui/models/run_table.hpp).
#include "gui/models/run_table.hpp"

#include <fmt/format.h>

#include "planner/base/format.hpp"

namespace plimsoll::gui {

TableData run_table(const RunComparison& run) {
  TableData table{{{"of a rank and step", false, {}},
                   {"predicted", true, {}},
                   {"run", true, "of all steps but the first: time is their median"},
                   {"error", true, "of the prediction"}},
                  {}};
  for (const RunFigure& figure : run.figures) {
    const auto cell = [&](double value) {
      return figure.name == "step time" ? cell_of_seconds(value) : cell_of_count(static_cast<std::int64_t>(value));
    };
    table.rows.push_back(
        {{cell_of_text(figure.name), cell(figure.predicted),
          figure.measured ? cell(*figure.measured) : cell_of_text("-"),
          figure.measured ? TableCell{fmt::format("{:+.2f} %", 100 * figure.error()), figure.error(), {}}
                          : cell_of_text({})},
         figure.name});
  }
  return table;
}

TableData run_steps_table(const RunComparison& run) {
  TableData table{{{"step", true, {}},
                   {"loss", true, "of a token, over all ranks"},
                   {"time", true, {}},
                   {"tokens/s", true, "of a rank"},
                   {"", false, {}}},
                  {}};
  for (const RunStep& step : run.log.steps) {
    table.rows.push_back({{cell_of_count(step.number),
                           {fmt::format("{:.4f}", step.loss), step.loss, {}},
                           cell_of_seconds(step.time_s),
                           cell_of_count(static_cast<std::int64_t>(step.tokens_per_s)),
                           cell_of_text(step.skipped ? "skipped: gradients not finite" : "")},
                          fmt::format("{}", step.number)});
  }
  return table;
}

std::string run_in_words(const RunComparison& run) {
  const RunLog& log = run.log;
  return fmt::format("{} on the {} backend, loss {:.4f} to {:.4f}.", counted(std::ssize(log.steps), "step"),
                     log.backend, log.steps.front().loss, log.steps.back().loss) +
         (log.backend == "host" ? "  The host backend is the numerical reference: its time is not the cluster's." : "");
}

}  // namespace plimsoll::gui
