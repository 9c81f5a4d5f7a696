// Classes of kernels, simulated and measured (gui/models/profile_table.hpp).
#include "gui/models/profile_table.hpp"

#include <fmt/format.h>

namespace plimsoll::gui {

TableData profile_table(const KinetoComparison& comparison) {
  TableData table{{{"kernels", false, "by class: a collective's measured time holds its wait for the peers"},
                   {"launches", true, "in the simulated step"},
                   {"simulated", true, {}},
                   {"measured", true, {}},
                   {"launches measured", true, {}}},
                  {}};
  const auto add = [&](const char* name, const ClassUse& mine, const ClassUse& theirs, bool sum) {
    if (mine.launches == 0 && theirs.launches == 0) return;
    table.rows.push_back({{cell_of_text(name), cell_of_count(mine.launches), cell_of_seconds(mine.seconds),
                           cell_of_seconds(theirs.seconds), cell_of_count(theirs.launches)},
                          name,
                          sum});
  };
  for (int i = 0; i < op_class_count; ++i) {
    const auto op_class = static_cast<OpClass>(i);
    add(name_of(op_class), comparison.simulated.of(op_class), comparison.measured.of(op_class), false);
  }
  add("compute in all", comparison.simulated.compute(), comparison.measured.compute(), true);
  const auto seconds = [&](const char* name, double mine, double theirs) {
    table.rows.push_back(
        {{cell_of_text(name), cell_of_text({}), cell_of_seconds(mine), cell_of_seconds(theirs), cell_of_text({})},
         name,
         true});
  };
  seconds("first start to last end", comparison.simulated.span_s, comparison.measured.span_s);
  seconds("nothing ran", comparison.simulated.idle_s, comparison.measured.idle_s);
  seconds("nothing but collectives ran", comparison.simulated.exposed_s, comparison.measured.exposed_s);
  return table;
}

std::string profile_in_words(const KinetoComparison& comparison) {
  return fmt::format("Compute time is off by {:+.1f} %; both steps have {:.0f} % of it in the same classes of kernels.",
                     100 * comparison.compute_error(), 100 * comparison.likeness());
}

}  // namespace plimsoll::gui
