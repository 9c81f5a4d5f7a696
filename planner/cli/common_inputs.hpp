// What does a command work on?  The inputs that every command takes (--model, --cluster, --plan or --ds, --set, ...) become
// one checked Scenario, or the diagnostics of all files at once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/spec/calibration.hpp"
#include "planner/spec/check_configuration.hpp"
#include "planner/spec/scenario.hpp"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}

namespace plimsoll {

/// As the command line states them.
struct InputOptions {
  std::string model, cluster, plan, ds, calibration, host_memory, gpus, nodes;
  std::vector<std::string> sets;
  std::string rank = "hottest";
  bool json = false;
  bool any_world =
      false;  ///< the number of GPUs is asked for: the plan is read where it is legal, on so many or others
};

/// No larger number of GPUs is tried.
inline constexpr int most_gpus = 8192;

/// Which of them a command takes.
struct InputOffer {
  bool scenario = true;  ///< --model and --cluster must be given
  bool plan = true;      ///< --plan and --ds
  bool rank = false;     ///< --rank
};
void add_common_inputs(CLI::App& app, InputOptions& options, InputOffer offer = {});

/// Whose bytes?
struct RankChoice {
  enum class Kind : std::uint8_t { hottest, mean, one };
  Kind kind = Kind::hottest;
  int rank = 0;
};

/// All files read and checked against each other.
class Inputs {
 public:
  /// @throws MachineError if a file is missing or unreadable
  explicit Inputs(InputOptions options);

  const InputOptions& options() const { return options_; }
  const std::optional<ModelSpec>& model() const { return model_; }
  const std::optional<ClusterSpec>& cluster() const { return cluster_; }
  const CheckReport& report() const { return report_; }
  const RankChoice& rank() const { return rank_; }
  const std::optional<int>& gpus() const { return gpus_; }  ///< of --gpus
  /// Of all files, with those of the command line first.
  const Diagnostics& diagnostics() const { return diagnostics_; }

  /// The scenario; needs model and cluster, and no errors.
  Scenario scenario() const;

  /// What kernels and links cost on the cluster; needs it, and no errors.  Diagnostics come only where nobody stated a
  /// calibration: those of a stated one are among the inputs'.
  Result<Calibration> prices() const;

  /// The scenario with further keys ("micro_batch=1") set over; a larger world grows the cluster.  The reasons, if that is
  /// refused.
  Result<Scenario> with(const std::vector<std::string>& sets) const;
  /// The same for a search: accumulation makes up for what would change the global batch that the file states; refused where
  /// none does.
  Result<Scenario> varied(const std::vector<std::string>& sets) const;

 private:
  CheckReport check(const std::vector<std::string>& further_sets, const ClusterSpec* cluster, bool keep_batch) const;
  CheckReport check_on_fewest() const;
  ClusterSpec cluster_with(const std::vector<std::string>& sets) const;
  Result<Scenario> with(const std::vector<std::string>& sets, bool keep_batch) const;
  std::optional<int> read_count(const std::string& text, const char* option);
  void read_command_line();
  void read_files();

  InputOptions options_;
  std::vector<std::string> sets_;
  std::shared_ptr<const SourceFile> plan_file_;
  bool is_ds_config_ = false;
  std::optional<ModelSpec> model_;
  std::optional<ClusterSpec> cluster_;
  std::optional<Calibration> calibration_;  ///< that --calibration or the cluster's file names
  std::optional<Bytes> host_memory_;
  std::optional<int> gpus_, nodes_;
  RankChoice rank_;
  CheckReport report_;
  Diagnostics diagnostics_;
};

/// A cluster of the same kind with at least `gpus` GPUs: more nodes, and fuller ones where it is a preset of one node that is
/// smaller than the servers of eight in which its device stands.
ClusterSpec grown(const ClusterSpec& cluster, int gpus);

/// Prints diagnostics on standard error.
/// @param least notes are left out with Severity::warning, warnings too with Severity::error
void print_diagnostics(const Diagnostics& diagnostics, Severity least = Severity::warning);

/// For commands that need a whole scenario: the inputs with what is wrong or remarkable in them printed on standard error;
/// nothing if there are errors, which are then an object on standard output too where --json was asked for.
std::optional<Inputs> load_scenario(const InputOptions& options);

}  // namespace plimsoll
