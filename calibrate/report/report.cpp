// Errors by class and the plot (calibrate/report/report.hpp).
#include "calibrate/report/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

namespace plimsoll::calibrate {
namespace {

constexpr double width = 720, height = 560, left = 70, top = 40, right = 180, bottom = 50;
constexpr std::array colours{"#1b6ca8", "#d1495b", "#2e933c", "#edae49", "#6d597a", "#00798c", "#8d6a9f", "#444444"};

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '<') {
      result += "&lt;";
    } else if (c == '&') {
      result += "&amp;";
    } else {
      result += c;
    }
  }
  return result;
}

struct Axis {
  double low = -6, high = 0;  ///< decades of seconds
  double x(double seconds) const { return left + (std::log10(seconds) - low) / (high - low) * (width - left - right); }
  double y(double seconds) const {
    return height - bottom - (std::log10(seconds) - low) / (high - low) * (height - top - bottom);
  }
};

std::string decade_name(int decade) {
  static constexpr std::array names{"1 ns", "10 ns", "100 ns", "1 us", "10 us", "100 us",
                                    "1 ms", "10 ms", "100 ms", "1 s",  "10 s"};
  const int index = decade + 9;
  return index >= 0 && index < static_cast<int>(names.size()) ? names[static_cast<std::size_t>(index)] : "";
}

std::string axes(const Axis& axis) {
  std::string svg;
  for (int decade = static_cast<int>(axis.low); decade <= static_cast<int>(axis.high); ++decade) {
    const double at = std::pow(10, decade);
    svg += fmt::format("<line x1='{0:.1f}' y1='{1:.1f}' x2='{0:.1f}' y2='{2:.1f}' stroke='#ddd'/>\n", axis.x(at), top,
                       height - bottom);
    svg += fmt::format("<line x1='{1:.1f}' y1='{0:.1f}' x2='{2:.1f}' y2='{0:.1f}' stroke='#ddd'/>\n", axis.y(at), left,
                       width - right);
    svg += fmt::format("<text x='{:.1f}' y='{:.1f}' text-anchor='middle'>{}</text>\n", axis.x(at), height - bottom + 18,
                       decade_name(decade));
    svg += fmt::format("<text x='{:.1f}' y='{:.1f}' text-anchor='end'>{}</text>\n", left - 6, axis.y(at) + 4,
                       decade_name(decade));
  }
  for (const double factor : {0.85, 1.0, 1.15}) {
    const double from = std::pow(10, axis.low), to = std::pow(10, axis.high) / std::max(1.0, factor);
    const double start = factor < 1 ? from / factor : from;
    svg += fmt::format("<line x1='{:.1f}' y1='{:.1f}' x2='{:.1f}' y2='{:.1f}' stroke='#888'{}/>\n", axis.x(start),
                       axis.y(start * factor), axis.x(to), axis.y(to * factor),
                       factor == 1 ? "" : " stroke-dasharray='4 4'");
  }
  return svg;
}

}  // namespace

std::vector<ClassErrors> class_errors(const std::vector<Entry>& entries, bool held_out) {
  std::vector<std::string> kinds;
  std::map<std::string, std::vector<Residual>> residuals;
  for (const Entry& entry : entries) {
    if (std::find(kinds.begin(), kinds.end(), entry.kind) == kinds.end()) kinds.push_back(entry.kind);
    auto& all = residuals[entry.kind];
    all.insert(all.end(), entry.residuals.begin(), entry.residuals.end());
  }
  std::vector<ClassErrors> result;
  for (const std::string& kind : kinds) {
    ClassErrors row{kind, errors_of(residuals[kind], held_out), errors_of(residuals[kind], held_out, 100e-6)};
    if (row.all.count > 0) result.push_back(row);
  }
  return result;
}

std::string plot_svg(const std::vector<Entry>& entries, bool held_out, const std::string& title) {
  Axis axis{0, -9};
  for (const Entry& entry : entries) {
    for (const Residual& r : entry.residuals) {
      axis.low = std::min(axis.low, std::floor(std::log10(r.measured_s)));
      axis.high = std::max(axis.high, std::ceil(std::log10(r.measured_s)));
    }
  }
  if (axis.high <= axis.low) axis.high = axis.low + 1;
  std::string svg = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' width='{0}' height='{1}' viewBox='0 0 {0} {1}' font-family='sans-serif' "
      "font-size='11'>\n<rect width='{0}' height='{1}' fill='white'/>\n<text x='{2}' y='22' "
      "font-size='14'>{3}</text>\n",
      width, height, left, escaped(title));
  svg += axes(axis);
  svg += fmt::format("<text x='{:.1f}' y='{:.1f}' text-anchor='middle'>measured</text>\n", (left + width - right) / 2,
                     height - 12);
  svg += fmt::format("<text x='16' y='{0:.1f}' transform='rotate(-90 16 {0:.1f})' text-anchor='middle'>{1}</text>\n",
                     (top + height - bottom) / 2, held_out ? "predicted, held out" : "fitted");
  std::map<std::string, std::size_t> colour;
  for (const Entry& entry : entries) {
    const std::size_t index = colour.try_emplace(entry.kind, colour.size()).first->second % colours.size();
    for (const Residual& r : entry.residuals) {
      const double value = held_out ? r.held_out_s : r.fitted_s;
      if (!(value > 0) || !std::isfinite(value)) continue;
      const double shown = std::clamp(value, std::pow(10, axis.low), std::pow(10, axis.high));
      svg += fmt::format(
          "<circle cx='{:.1f}' cy='{:.1f}' r='2.5' fill='{}' fill-opacity='0.6'><title>{}: {:.4g} us, {:.4g} "
          "us</title></circle>\n",
          axis.x(r.measured_s), axis.y(shown), colours[index], escaped(r.key), 1e6 * r.measured_s, 1e6 * value);
    }
  }
  double y = top + 10;
  for (const auto& [kind, index] : colour) {
    svg +=
        fmt::format("<circle cx='{0:.1f}' cy='{1:.1f}' r='4' fill='{2}'/><text x='{3:.1f}' y='{4:.1f}'>{5}</text>\n",
                    width - right + 20, y, colours[index % colours.size()], width - right + 30, y + 4, escaped(kind));
    y += 18;
  }
  return svg + "</svg>\n";
}

}  // namespace plimsoll::calibrate
