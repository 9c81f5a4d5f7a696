// plimsoll calibrate fit: samples to a calibration file.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "calibrate/cli/commands.hpp"
#include "calibrate/cli/files.hpp"
#include "calibrate/fit/fit.hpp"
#include "calibrate/report/report.hpp"
#include "planner/cli/common_inputs.hpp"
#include "planner/cli/terminal.hpp"
#include "planner/spec/devices.hpp"
#include "planner/spec/document.hpp"
#include "planner/spec/presets.hpp"
#include "planner/spec/read_calibration.hpp"
#include "planner/spec/write_calibration.hpp"

namespace plimsoll::calibrate {
namespace {

struct FitOptions {
  std::vector<std::string> samples;
  std::string output, base, name, residuals, plot;
  bool json = false;
};

/// What the samples do not cover: the file asked for, the device's own preset, else its published figures.
std::optional<Calibration> base_of(const FitOptions& options, const std::string& device) {
  if (!options.base.empty()) return load_calibration_file(options.base);
  if (find_preset("calibrations", device)) return load_calibration_file(device);
  if (const Server* server = find_server(device)) {
    const Result<Calibration> published = published_prices(make_cluster(*server, 1));
    print_diagnostics(published.diagnostics());
    return published ? std::optional(*published) : std::nullopt;
  }
  return load_calibration_file("h200");  // the form of the rules; every figure that is not measured stays marked
}

std::string residuals_csv(const std::vector<Entry>& entries) {
  std::string text = "entry,point,measured_s,fitted_s,held_out_s\n";
  for (const Entry& entry : entries) {
    for (const Residual& r : entry.residuals)
      text += fmt::format("{},{},{:.6g},{:.6g},{:.6g}\n", entry.name, r.key, r.measured_s, r.fitted_s, r.held_out_s);
  }
  return text;
}

/// Whatever samples hold: what is written is a calibration.
bool can_be_read(const std::string& text, const std::string& path) {
  const auto document = parse_document(std::make_shared<SourceFile>(SourceFile{path, text}));
  if (document) {
    const auto again = read_calibration(*document, path);
    if (again) return true;
    print_diagnostics(again.diagnostics());
  }
  fmt::print(stderr, "plimsoll-calibrate: what follows from these samples is no calibration; {} is not written\n",
             path);
  return false;
}

int fit(const FitOptions& options) {
  if (would_overwrite({options.output, options.residuals, options.plot}, options.samples)) return exit_code::usage;
  const auto files = load_samples(options.samples);
  if (!files) return exit_code::input;
  const std::string device = files->front().header.device;
  const auto base = base_of(options, device);
  if (!base) return exit_code::input;
  const std::string output = options.output.empty() ? device + ".json" : options.output;
  const std::string name = options.name.empty() ? std::filesystem::path(output).stem().string() : options.name;
  const auto result = fit_calibration(*files, *base, name);
  print_diagnostics(result.diagnostics());
  if (!result) return exit_code::input;
  const std::string text = calibration_text(result->calibration);
  if (!can_be_read(text, output)) return exit_code::input;
  write_text(output, text);
  if (!options.residuals.empty()) write_text(options.residuals, residuals_csv(result->entries));
  if (!options.plot.empty())
    write_text(options.plot, plot_svg(result->entries, true, name + ": measured against predicted, held out"));
  if (options.json) {
    print(errors_json(result->entries, true));
    return exit_code::ok;
  }
  print(fmt::format("{} written\nErrors of points that the fit did not see (five times a fifth held out)\n{}", output,
                    errors_text(result->entries, true, true)));
  if (!result->kept.empty())
    print(fmt::format("\nNot measured, from {}: {}\n", base->name, fmt::join(result->kept, ", ")));
  return exit_code::ok;
}

}  // namespace

std::function<int()> declare_fit(CLI::App& app) {
  auto options = std::make_shared<FitOptions>();
  app.add_option("samples", options->samples,
                 "files of bench and import; of a point that several hold, the first counts")
      ->required();
  app.add_option("-o,--output", options->output, "the calibration (default: DEVICE.json)");
  app.add_option("--base", options->base, "a calibration for what was not measured (default: the device's own)");
  app.add_option("--name", options->name, "its name (default: the file's)");
  app.add_option("--residuals", options->residuals, "every point with its measured, fitted and held-out time, as CSV");
  app.add_option("--plot", options->plot,
                 "measured against predicted by fits that did not see the point, as an SVG file");
  app.add_flag("--json", options->json, "the errors as one JSON object");
  return [options] { return fit(*options); };
}

}  // namespace plimsoll::calibrate
