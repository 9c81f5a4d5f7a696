// plimsoll calibrate report: a calibration against samples.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "calibrate/cli/commands.hpp"
#include "calibrate/cli/files.hpp"
#include "calibrate/fit/fit.hpp"
#include "calibrate/report/report.hpp"
#include "planner/cli/terminal.hpp"

namespace plimsoll::calibrate {
namespace {

struct ReportOptions {
  std::string calibration, plot;
  std::vector<std::string> samples;
  bool markdown = false, json = false;
};

int report(const ReportOptions& options) {
  std::vector<std::string> inputs = options.samples;
  inputs.push_back(options.calibration);
  if (would_overwrite({options.plot}, inputs)) return exit_code::usage;
  const auto calibration = load_calibration_file(options.calibration);
  const auto loaded = load_samples(options.samples);
  if (!calibration || !loaded) return exit_code::input;
  std::vector<SampleFile> files = as_fitted(*loaded);
  std::vector<Entry> entries;
  std::size_t doubtful = 0, failed = 0, without = 0, others = 0;
  for (SampleFile& file : files) {
    others += std::erase_if(file.samples, [&](const Sample& sample) {
      return sample.source == "bench" && !speaks_of(*calibration, sample.point);
    });
    for (const Entry& entry : compare_with(*calibration, file.header.multiprocessors, file.samples)) {
      const auto same =
          std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.name == entry.name; });
      if (same == entries.end()) {
        entries.push_back(entry);
      } else {
        same->residuals.insert(same->residuals.end(), entry.residuals.begin(), entry.residuals.end());
      }
    }
    for (const Sample& sample : file.samples) doubtful += sample.note.empty() ? 0 : 1;
    failed += file.failures.size();
    without += file.samples.size();
  }
  for (const Entry& entry : entries) without -= entry.residuals.size();
  if (!options.plot.empty())
    write_text(options.plot, plot_svg(entries, false, calibration->name + ": measured against predicted"));
  if (options.json) {
    print(errors_json(entries, false));
  } else if (options.markdown) {
    print(errors_markdown(entries, false));
  } else {
    print(
        fmt::format("{} against its samples\n{}\n{} samples have no rule here (host costs, pairs, fixed bytes); {} are "
                    "marked as doubtful, {} points failed\n",
                    calibration->name, errors_text(entries, false, true), without, doubtful, failed));
    if (others > 0)
      print(fmt::format("{} samples were left out: what the calibration says there is of a framework's kernels\n",
                        others));
  }
  return exit_code::ok;
}

}  // namespace

std::function<int()> declare_report(CLI::App& app) {
  auto options = std::make_shared<ReportOptions>();
  app.add_option("calibration", options->calibration, "a calibration file or preset")->required();
  app.add_option("samples", options->samples, "files of bench or import")->required();
  app.add_option("--plot", options->plot, "measured against predicted, as an SVG file");
  app.add_flag("--markdown", options->markdown, "the table by class as Markdown");
  app.add_flag("--json", options->json, "one JSON object");
  return [options] { return report(*options); };
}

}  // namespace plimsoll::calibrate
