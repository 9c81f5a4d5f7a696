// Draws a sweep (planner/cli/chart.hpp): horizontal bars, so that long labels have room.
#include "planner/cli/chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "planner/base/machine_error.hpp"
#include "planner/base/unicode.hpp"
#include "planner/cli/in_words.hpp"

namespace plimsoll {
namespace {

constexpr int row_height = 22, bar_height = 14, plot_width = 560, margin = 16, head = 44, letter_width = 7;

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : printable(text)) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string label_of(const std::vector<std::string>& keys, const SweepRow& row) {
  std::string label;
  for (std::size_t i = 0; i < keys.size(); ++i)
    label += fmt::format("{}{}={}", i > 0 ? " " : "", keys[i], row.values[i]);
  return label;
}

const char* fill_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::fits: return "#2e7d32";
    case Verdict::tight: return "#f9a825";
    case Verdict::oom: return "#c62828";
  }
  return "#000";
}

}  // namespace

void write_chart(const std::string& path, const std::vector<std::string>& keys, const std::vector<SweepRow>& rows) {
  double largest = 1;
  int label_cells = 0;
  for (const SweepRow& row : rows) {
    label_cells = std::max(label_cells, display_width(label_of(keys, row)));
    if (row.ledger)
      largest = std::max({largest, static_cast<double>(row.ledger->device_peak.value.count),
                          static_cast<double>(row.ledger->capacity.count)});
  }
  const int left = margin + label_cells * letter_width + 8;
  const int width = left + plot_width + 90, height = head + static_cast<int>(rows.size()) * row_height + margin;
  const auto x_of = [&](Bytes bytes) { return left + plot_width * static_cast<double>(bytes.count) / largest; };
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n"
      "<text x=\"{2}\" y=\"20\">Memory of a steady step on one GPU, GiB: allocated (solid), reserved and device "
      "(lighter); "
      "the line is the card</text>\n",
      width, height, margin);
  int y = head;
  for (const SweepRow& row : rows) {
    svg += fmt::format("<text x=\"{}\" y=\"{}\">{}</text>\n", margin, y + bar_height - 2, escaped(label_of(keys, row)));
    if (!row.ledger) {
      svg += fmt::format("<text x=\"{}\" y=\"{}\" fill=\"#777\">{}</text>\n", left, y + bar_height - 2,
                         escaped(row.refusal));
    } else {
      const Ledger& ledger = *row.ledger;
      const auto block = [&](Bytes bytes, double opacity) {
        svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\" fill-opacity=\"{}\"/>\n",
                           left, y, x_of(bytes) - left, bar_height, fill_of(ledger.verdict), opacity);
      };
      block(ledger.device_peak.value, 0.25);
      block(ledger.reserved_peak.value, 0.35);
      block(ledger.allocated_peak.value, 1);
      svg += fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" stroke=\"black\"/>\n",
                         x_of(ledger.capacity), y - 4, y + bar_height + 4);
      svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\">{}</text>\n",
                         std::max(x_of(ledger.device_peak.value), x_of(ledger.capacity)) + 6, y + bar_height - 2,
                         gibibytes(ledger.device_peak.value));
    }
    y += row_height;
  }
  svg += "</svg>\n";
  std::ofstream file(path, std::ios::binary);
  file << svg;
  file.close();
  if (!file) throw MachineError(fmt::format("cannot write {}: {}", path, std::strerror(errno)));
}

}  // namespace plimsoll
