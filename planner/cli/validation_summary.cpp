// Mean, largest and signed error of each figure over all rows, and the same by kind of figure (planner/cli/validation.hpp).
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "planner/cli/validation.hpp"

namespace plimsoll {
namespace {

/// Figures in the order in which a job meets them: of the whole step, phase by phase, files, time.
constexpr std::array<std::string_view, 3> step_figures = {"allocated_peak", "reserved_peak", "device_peak"};
constexpr std::array<std::string_view, 10> phases = {
    "model_built",    "initialized",     "first_step_forward", "first_step_backward", "first_step_step",
    "steady_forward", "steady_backward", "steady_step",        "save_16bit",          "save_checkpoint"};
constexpr std::array<std::string_view, 6> phase_figures = {"allocated_end",     "allocated_peak",     "reserved_end",
                                                           "host_resident_end", "host_resident_peak", "host_pinned"};

template <std::size_t count>
std::size_t position(const std::array<std::string_view, count>& list, std::string_view name) {
  return static_cast<std::size_t>(std::find(list.begin(), list.end(), name) - list.begin());
}

std::size_t order_of(const std::string& figure) {
  const std::size_t dot = figure.rfind('.');
  if (figure == "step_time") return 400;
  if (figure.rfind("file.", 0) == 0) return 300;
  if (dot == std::string::npos) return position(step_figures, figure);
  return 10 + 10 * position(phases, figure.substr(0, dot)) + position(phase_figures, figure.substr(dot + 1));
}

/// "allocated, peak of a phase, steady step"
std::string kind_of(const std::string& figure) {
  if (figure == "allocated_peak") return "allocated, peak of a steady step";
  if (figure == "reserved_peak") return "reserved, peak of a steady step";
  if (figure == "device_peak") return "device, peak of a steady step";
  if (figure == "step_time") return "step time";
  if (figure.starts_with("file.")) return "checkpoint files above 1 MB";
  const std::string part = figure.substr(figure.rfind('.') + 1);
  if (part == "host_resident_end") return "host resident, end of a phase";
  if (part == "host_resident_peak") return "host resident, peak of a phase";
  if (part == "host_pinned") return "host pinned, end of a phase";
  const std::string when = figure.starts_with("steady_")       ? "steady step"
                           : figure.starts_with("first_step_") ? "first step"
                           : figure.starts_with("save_")       ? "saving"
                                                               : "construction";
  if (part == "reserved_end") return "reserved, end of a phase, " + when;
  return (part == "allocated_end" ? "allocated, end of a phase, " : "allocated, peak of a phase, ") + when;
}

std::vector<FigureSummary> summarize(const std::vector<Comparison>& rows,
                                     const std::function<std::string(const std::string&)>& name) {
  std::vector<FigureSummary> summaries;
  std::vector<const Comparison*> sorted;
  sorted.reserve(rows.size());
  for (const Comparison& row : rows) sorted.push_back(&row);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Comparison* a, const Comparison* b) { return order_of(a->figure) < order_of(b->figure); });
  for (const Comparison* row : sorted) {
    const std::string figure = name(row->figure);
    auto found = std::find_if(summaries.begin(), summaries.end(), [&](const auto& s) { return s.figure == figure; });
    if (found == summaries.end()) {
      FigureSummary summary;
      summary.figure = figure;
      found = summaries.insert(summaries.end(), std::move(summary));
    }
    ++found->n;
    found->mean += std::abs(row->error);
    found->bias += row->error;
    if (std::abs(row->error) >= found->max) {
      found->max = std::abs(row->error);
      found->worst = row->id;
    }
  }
  for (FigureSummary& summary : summaries) {
    summary.mean /= summary.n;
    summary.bias /= summary.n;
  }
  return summaries;
}

}  // namespace

std::vector<FigureSummary> summaries_by_figure(const std::vector<Comparison>& rows) {
  return summarize(rows, [](const std::string& figure) { return figure; });
}

std::vector<FigureSummary> summaries_by_kind(const std::vector<Comparison>& rows) { return summarize(rows, kind_of); }

}  // namespace plimsoll
