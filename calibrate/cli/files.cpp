// Reading, writing and tables (calibrate/cli/files.hpp).
#include "calibrate/cli/files.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "calibrate/report/report.hpp"
#include "planner/base/machine_error.hpp"
#include "planner/cli/common_inputs.hpp"
#include "planner/cli/json_text.hpp"
#include "planner/cli/table.hpp"
#include "planner/spec/devices.hpp"
#include "planner/spec/presets.hpp"
#include "planner/spec/read_calibration.hpp"

namespace plimsoll::calibrate {
namespace {

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

/// Words of a kind in tables.
std::string in_words(const std::string& kind) {
  if (kind == "gemm_grouped") return "grouped gemm";
  if (kind == "kernel") return "memory-bound kernels";
  if (kind == "copy") return "copies, pinned";
  if (kind == "pageable copy") return "copies, pageable";
  if (kind == "collective") return "collectives";
  if (kind == "host") return "host costs";
  if (kind == "pair") return "pairs at once";
  return kind;
}

}  // namespace

std::optional<std::vector<SampleFile>> load_samples(const std::vector<std::string>& paths) {
  std::vector<SampleFile> files;
  bool good = true;
  for (const std::string& path : paths) {
    auto file = read_samples(path);
    print_diagnostics(file.diagnostics());
    good = good && static_cast<bool>(file);
    if (file) files.push_back(std::move(*file));
  }
  return good ? std::optional(std::move(files)) : std::nullopt;
}

std::optional<Calibration> load_calibration_file(const std::string& file_or_preset) {
  const auto preset = find_preset("calibrations", file_or_preset);
  const std::string path = preset ? preset->string() : file_or_preset;
  auto document = parse_document(load_source(path));
  print_diagnostics(document.diagnostics());
  if (!document || has_errors(document.diagnostics())) return {};
  auto calibration = read_calibration(*document, file_or_preset);
  print_diagnostics(calibration.diagnostics());
  if (!calibration) return {};
  return std::move(*calibration);
}

bool would_overwrite(const std::vector<std::string>& outputs, const std::vector<std::string>& inputs) {
  for (const std::string& output : outputs) {
    for (const std::string& input : inputs) {
      std::error_code error;
      if (output.empty() || !std::filesystem::equivalent(output, input, error)) continue;
      fmt::print(stderr, "plimsoll-calibrate: {} is read here; write to another file\n", input);
      return true;
    }
  }
  return false;
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw MachineError(fmt::format("cannot write {}: {}", path, std::strerror(errno)));
}

std::string errors_text(const std::vector<Entry>& entries, bool held_out, bool rules) {
  Table table({{"class"},
               {"points", Align::right},
               {"mean", Align::right},
               {"worst", Align::right},
               {">= 100 us", Align::right},
               {"mean", Align::right},
               {"worst", Align::right}});
  for (const ClassErrors& row : class_errors(entries, held_out)) {
    table.row({in_words(row.kind), std::to_string(row.all.count), percent(row.all.mean), percent(row.all.worst),
               std::to_string(row.long_ones.count), row.long_ones.count > 0 ? percent(row.long_ones.mean) : "",
               row.long_ones.count > 0 ? percent(row.long_ones.worst) : ""});
  }
  std::string text = table.text(2);
  if (!rules) return text;
  Table each({{"entry"},
              {"points", Align::right},
              {"mean", Align::right},
              {"worst", Align::right},
              {"95 %", Align::right},
              {"rule"}});
  std::string outliers;
  for (const Entry& entry : entries) {
    const Errors errors = errors_of(entry.residuals, held_out);
    each.row({entry.name, std::to_string(entry.residuals.size()), errors.count > 0 ? percent(errors.mean) : "",
              errors.count > 0 ? percent(errors.worst) : "", errors.count > 0 ? percent(errors.interval) : "",
              entry.refused.empty() ? entry.rule : "not fitted: " + entry.refused});
    for (const std::string& outlier : entry.outliers) outliers += fmt::format("  {}\n", outlier);
  }
  text += "\n" + each.text(2);
  if (!outliers.empty()) text += "\nPoints that stand out (fitted against measured)\n" + outliers;
  return text;
}

std::string errors_markdown(const std::vector<Entry>& entries, bool held_out) {
  std::string text = "| class | points | mean | worst | >= 100 us | mean | worst |\n|---|--:|--:|--:|--:|--:|--:|\n";
  for (const ClassErrors& row : class_errors(entries, held_out)) {
    text += fmt::format("| {} | {} | {} | {} | {} | {} | {} |\n", in_words(row.kind), row.all.count,
                        percent(row.all.mean), percent(row.all.worst), row.long_ones.count,
                        row.long_ones.count > 0 ? percent(row.long_ones.mean) : "",
                        row.long_ones.count > 0 ? percent(row.long_ones.worst) : "");
  }
  return text;
}

std::string errors_json(const std::vector<Entry>& entries, bool held_out) {
  using Json = nlohmann::ordered_json;
  const auto of = [](const Errors& e) {
    return Json{{"n", e.count}, {"mean", e.mean}, {"worst", e.worst}, {"interval", e.interval}};
  };
  Json json = {{"classes", Json::array()}, {"entries", Json::array()}};
  for (const ClassErrors& row : class_errors(entries, held_out))
    json["classes"].push_back({{"class", row.kind}, {"all", of(row.all)}, {"above_100us", of(row.long_ones)}});
  for (const Entry& entry : entries) {
    Json one = {{"name", entry.name},
                {"errors", of(errors_of(entry.residuals, held_out))},
                {"rule", entry.rule},
                {"outliers", entry.outliers}};
    if (!entry.refused.empty()) one["refused"] = entry.refused;
    json["entries"].push_back(std::move(one));
  }
  return json_text(json);
}

}  // namespace plimsoll::calibrate
