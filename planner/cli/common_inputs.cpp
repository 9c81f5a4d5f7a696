// From the command line's common inputs to a checked scenario (planner/cli/common_inputs.hpp).
#include "planner/cli/common_inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "planner/base/format.hpp"
#include "planner/cli/json_output.hpp"
#include "planner/cli/terminal.hpp"
#include "planner/spec/devices.hpp"
#include "planner/spec/limits.hpp"
#include "planner/spec/read_calibration.hpp"
#include "planner/spec/read_cluster.hpp"
#include "planner/spec/read_model.hpp"

namespace plimsoll {
namespace {

constexpr std::string_view world_key = "world_size=";

void append(Diagnostics& all, const Diagnostics& more) { all.insert(all.end(), more.begin(), more.end()); }

/// The value of a Result, its diagnostics moved over.
template <class T>
std::optional<T> taken(Result<T> result, Diagnostics& diagnostics) {
  append(diagnostics, result.diagnostics());
  if (!result) return std::nullopt;
  return std::move(*result);
}

std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// --gpus is a --set of its own, so that of two numbers none is the last.
void check_worlds(const std::vector<std::string>& sets, int gpus, Diagnostics& diagnostics) {
  const auto last =
      std::find_if(sets.rbegin(), sets.rend(), [](const std::string& set) { return set.starts_with(world_key); });
  if (last == sets.rend() || whole_number(std::string_view(*last).substr(world_key.size())) == gpus) return;
  const auto file = std::make_shared<SourceFile>(SourceFile{"--set " + *last, *last});
  diagnostics.push_back(make_error("cli.world", fmt::format("--gpus {} says otherwise", gpus),
                                   "they state the same number: leave out one of them",
                                   place_in(file, world_key.size(), last->size())));
}

}  // namespace

Inputs::Inputs(InputOptions options) : options_(std::move(options)) {
  read_command_line();
  read_files();
}

std::optional<int> Inputs::read_count(const std::string& text, const char* option) {
  if (text.empty()) return std::nullopt;
  const auto number = whole_number(text);
  if (number && *number >= 1 && *number <= limits::world) return static_cast<int>(*number);
  diagnostics_.push_back(make_error(
      "cli.range", fmt::format("{} {} is no whole number from 1 to {}", option, text, format_count(limits::world)),
      fmt::format("for example {} 8", option)));
  return std::nullopt;
}

void Inputs::read_command_line() {
  sets_ = options_.sets;
  gpus_ = read_count(options_.gpus, "--gpus");
  nodes_ = read_count(options_.nodes, "--nodes");
  if (gpus_) {
    check_worlds(options_.sets, *gpus_, diagnostics_);
    sets_.push_back(fmt::format("{}{}", world_key, *gpus_));
  }
  if (!options_.host_memory.empty()) {
    host_memory_ = parse_bytes(options_.host_memory);
    if (!host_memory_ || host_memory_->count <= 0) {
      diagnostics_.push_back(make_error("cli.unit", fmt::format("--host-memory {} is no size", options_.host_memory),
                                        "for example \"512 GiB\""));
      host_memory_.reset();
    }
  }
  if (options_.rank == "hottest" || options_.rank == "mean") {
    rank_.kind = options_.rank == "mean" ? RankChoice::Kind::mean : RankChoice::Kind::hottest;
  } else if (const auto rank = whole_number(options_.rank); rank && *rank >= 0 && *rank < limits::world) {
    rank_ = {RankChoice::Kind::one, static_cast<int>(*rank)};
  } else {
    diagnostics_.push_back(
        make_error("cli.rank", fmt::format("--rank {} is no rank", options_.rank), "hottest, mean or a number"));
  }
}

void Inputs::read_files() {
  if (!options_.model.empty()) model_ = taken(load_model(options_.model), diagnostics_);
  if (!options_.cluster.empty()) {
    cluster_ = taken(load_cluster(options_.cluster, nodes_), diagnostics_);
    if (cluster_ && host_memory_) cluster_->host_memory = *host_memory_;
  }
  is_ds_config_ = !options_.ds.empty();
  if (is_ds_config_ || !options_.plan.empty()) plan_file_ = load_source(is_ds_config_ ? options_.ds : options_.plan);
  report_ =
      options_.any_world && model_ && cluster_ ? check_on_fewest() : check({}, cluster_ ? &*cluster_ : nullptr, false);
  append(diagnostics_, report_.diagnostics);
  // Read by every command, also by those that have no use for it: what a user states is right or told.
  if (!options_.calibration.empty() || (cluster_ && cluster_->places.contains("/calibration")))
    calibration_ = taken(load_calibration(options_.calibration, cluster_.value_or(ClusterSpec{})), diagnostics_);
  if (report_.plan && rank_.rank >= report_.plan->world_size) {
    diagnostics_.push_back(make_error("cli.rank", fmt::format("there is no rank {}", rank_.rank),
                                      fmt::format("0 to {}", report_.plan->world_size - 1)));
  }
}

CheckReport Inputs::check(const std::vector<std::string>& further_sets, const ClusterSpec* cluster,
                          bool keep_batch) const {
  ConfigurationInput input;
  input.file = plan_file_;
  input.is_ds_config = is_ds_config_;
  input.overrides = sets_;
  input.overrides.insert(input.overrides.end(), further_sets.begin(), further_sets.end());
  input.model = model_ ? &*model_ : nullptr;
  input.cluster = cluster;
  input.keep_batch = keep_batch;
  return check_configuration(input);
}

CheckReport Inputs::check_on_fewest() const {
  const auto set_here = [](const Diagnostic& diagnostic) {
    return diagnostic.place.file && diagnostic.place.file->name.starts_with(fmt::format("--set {}", world_key));
  };
  CheckReport report = check({}, &*cluster_, true);
  for (int gpus = 1; !report.plan && hang_on_ranks(report.diagnostics) && gpus <= most_gpus; ++gpus) {
    const std::vector<std::string> sets{fmt::format("{}{}", world_key, gpus)};
    const ClusterSpec cluster = cluster_with(sets);
    report = check(sets, &cluster, true);
    std::erase_if(report.diagnostics, set_here);  // nobody stated it
  }
  if (report.plan) return report;
  report = check({}, &*cluster_, false);
  if (hang_on_ranks(report.diagnostics)) return report;
  std::erase_if(report.diagnostics, [](const Diagnostic& diagnostic) {
    return diagnostic.severity == Severity::error && hang_on_ranks({diagnostic});
  });
  return report;
}

Scenario Inputs::scenario() const {
  CHECK(model_ && cluster_ && report_.plan && !has_errors(diagnostics_), "a scenario needs inputs without errors");
  return {*model_, *cluster_, *report_.plan};
}

Result<Calibration> Inputs::prices() const {
  CHECK(cluster_ && !has_errors(diagnostics_), "prices need a cluster and inputs without errors");
  return calibration_ ? Result<Calibration>(*calibration_) : load_calibration({}, *cluster_);
}

ClusterSpec Inputs::cluster_with(const std::vector<std::string>& sets) const {
  ClusterSpec cluster = *cluster_;
  for (const std::string& set : sets) {
    if (set.rfind(world_key, 0) != 0) continue;
    const auto world = whole_number(std::string_view(set).substr(world_key.size()));
    if (world && *world > cluster.world() && *world <= limits::world) {
      cluster = grown(cluster, static_cast<int>(*world));
      if (host_memory_) cluster.host_memory = *host_memory_;
    }
  }
  return cluster;
}

Result<Scenario> Inputs::with(const std::vector<std::string>& sets) const { return with(sets, false); }

Result<Scenario> Inputs::varied(const std::vector<std::string>& sets) const {
  return with(sets, report_.global_batch > 0);
}

Result<Scenario> Inputs::with(const std::vector<std::string>& sets, bool keep_batch) const {
  CHECK(model_ && cluster_, "a scenario needs a model and a cluster");
  ClusterSpec cluster = cluster_with(sets);
  CheckReport report = check(sets, &cluster, keep_batch);
  if (!report.plan) return report.diagnostics;
  return Scenario{*model_, std::move(cluster), std::move(*report.plan)};
}

ClusterSpec grown(const ClusterSpec& cluster, int gpus) {
  if (gpus <= cluster.world()) return cluster;
  const Server* server = cluster.places.empty() ? find_server(cluster.device.name) : nullptr;
  if (server != nullptr && cluster.nodes == 1 && cluster.devices_per_node < devices_per_server) {
    return make_cluster(*server, gpus);
  }
  ClusterSpec larger = cluster;
  larger.nodes = static_cast<int>(ceil_div(gpus, cluster.devices_per_node));
  larger.spare_devices = larger.devices_per_node * larger.nodes - gpus;
  larger.name = fmt::format("{} of {}", counted(larger.nodes, "node"), cluster.name);
  return larger;
}

void print_diagnostics(const Diagnostics& diagnostics, Severity least) {
  for (const Diagnostic& diagnostic : diagnostics) {
    if (diagnostic.severity > least) continue;
    fmt::print(stderr, "{}\n", format(diagnostic, colours(Stream::error)));
  }
}

std::optional<Inputs> load_scenario(const InputOptions& options) {
  Inputs inputs(options);
  print_diagnostics(inputs.diagnostics());
  if (!has_errors(inputs.diagnostics())) return inputs;
  if (options.json) print(diagnostics_json(inputs.diagnostics()));
  return std::nullopt;
}

}  // namespace plimsoll
