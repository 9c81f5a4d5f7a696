// plimsoll calibrate check: does an existing calibration still hold here?  Half a minute of the most valuable points again, against
// what it says of the same kernels.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include <unistd.h>

#include "calibrate/bench/measure.hpp"
#include "calibrate/cli/commands.hpp"
#include "calibrate/cli/files.hpp"
#include "calibrate/fit/fit.hpp"
#include "planner/base/format.hpp"
#include "planner/base/machine_error.hpp"
#include "planner/cli/table.hpp"
#include "planner/cli/terminal.hpp"

namespace plimsoll::calibrate {
namespace {

struct CheckOptions {
  std::string calibration, backend = "cuda";
  double seconds = 30, within = 0;
};

/// Median ratio of measured to predicted: the drift of a class.
double drift_of(const Entry& entry) {
  std::vector<double> ratios;
  for (const Residual& r : entry.residuals) ratios.push_back(r.measured_s / r.fitted_s);
  std::nth_element(ratios.begin(), ratios.begin() + static_cast<std::ptrdiff_t>(ratios.size() / 2), ratios.end());
  return ratios[ratios.size() / 2] - 1;
}

/// A samples file that is gone when the check ends.
struct TemporaryFile {
  std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("plimsoll-check-{}.jsonl", getpid())).string();
  TemporaryFile() = default;
  ~TemporaryFile() {
    std::error_code error;
    std::filesystem::remove(path, error);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
};

int check(const CheckOptions& options) {
  const auto calibration = load_calibration_file(options.calibration);
  if (!calibration) return exit_code::input;
  Ranks ranks(rank_names([](const char* name) -> const char* { return std::getenv(name); }), 120);
  const auto backend = options.backend == "host" ? make_host_backend(ranks) : make_cuda_backend(ranks);
  const Header header = backend->header();
  if (header.device != calibration->device)
    fmt::print(stderr, "plimsoll-calibrate: the calibration is of a {}, this is a {}\n", calibration->device,
               header.device);
  auto cases = in_order(options.backend == "host" ? host_grid(ranks.world()) : cuda_grid(ranks.world(), "nvlink"));
  std::erase_if(cases,
                [](const Case& c) { return c.value > 0 || c.point.kind == "fixed_bytes" || c.point.kind == "pair"; });
  const std::size_t all = cases.size();
  std::erase_if(cases, [&](const Case& c) { return !speaks_of(*calibration, c.point); });
  // Host costs first, since kernels are corrected by them; then every third point, so that a short time sees all classes.
  std::vector<Case> some;
  for (const bool host : {true, false}) {
    for (std::size_t start = 0; start < 3; ++start) {
      for (std::size_t i = start; i < cases.size(); i += 3) {
        if ((cases[i].point.kind == "host") == host) some.push_back(cases[i]);
      }
    }
  }
  const TemporaryFile file;
  auto log = SampleLog::open(file.path, header, false);
  MeasureOptions how;
  how.budget_s = options.seconds;
  how.point_s = 0.1;
  const MeasureReport done = measure_all(some, *backend, ranks, ranks.rank() == 0 ? &*log : nullptr, how);
  if (ranks.rank() != 0) return exit_code::ok;
  const auto measured = read_samples(file.path);
  if (!measured) throw MachineError("the samples just written cannot be read");
  const auto entries = compare_with(*calibration, header.multiprocessors, as_fitted({*measured}).front().samples);
  Table table({{"class"}, {"points", Align::right}, {"now against then", Align::right}, {"usual error", Align::right}});
  double worst = 0;
  for (const Entry& entry : entries) {
    const double drift = drift_of(entry);
    worst = std::max(worst, std::abs(drift));
    table.row({entry.name, std::to_string(entry.residuals.size()), fmt::format("{:+.1f} %", 100 * drift),
               fmt::format("{:.1f} %", 100 * errors_of(entry.residuals, false).mean)});
  }
  print(fmt::format("{}: the class that drifted most is {:.1f} % off; {} points in {:.0f} s\n{}", options.calibration,
                    100 * worst, done.measured, done.seconds, table.text(2)));
  if (cases.size() < all) {
    print(
        fmt::format("\n{} points were left out: what the calibration says there is of a framework's kernels or not "
                    "measured, not of "
                    "those measured here\n",
                    all - cases.size()));
  }
  return options.within > 0 && 100 * worst > options.within ? exit_code::beyond : exit_code::ok;
}

}  // namespace

std::function<int()> declare_check(CLI::App& app) {
  auto options = std::make_shared<CheckOptions>();
  app.add_option("calibration", options->calibration, "a calibration file or preset")->required();
  app.add_option("--backend", options->backend, "cuda (default) or host")->check(CLI::IsMember({"cuda", "host"}));
  app.add_option("--seconds", options->seconds, "how long to measure (default 30)")->check(CLI::Range(0.5, 3600.0));
  app.add_option("--within", options->within, "exit code 5 if a class drifted by more than this percentage");
  return [options] { return check(*options); };
}

}  // namespace plimsoll::calibrate
