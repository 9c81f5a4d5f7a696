// Evaluating the rows of measured tables, a few at a time, and comparing (planner/cli/validation.hpp).
#include "planner/cli/validation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>

#include "planner/base/in_parallel.hpp"
#include "planner/base/machine_error.hpp"
#include "planner/cli/evaluate.hpp"
#include "planner/spec/read_calibration.hpp"
#include "planner/spec/read_cluster.hpp"
#include "planner/spec/read_model.hpp"
#include "planner/step/checkpoint_files.hpp"
#include "simulator/timeline.hpp"

namespace plimsoll {
namespace {

constexpr double megabyte = 1e6;
/// Rows evaluated together: each holds a step program and its pool, up to a few hundred MB.
constexpr int most_at_once = 8;

/// A cluster with its calibration, shared by all rows that name it.
struct Machine {
  std::optional<ClusterSpec> cluster;
  std::optional<Calibration> calibration;
  Diagnostics diagnostics;
};

/// The value, its diagnostics moved over, those without a place to the place of `text`.
template <class T>
std::optional<T> taken(Result<T> result, const RowText& text, Diagnostics& diagnostics) {
  for (Diagnostic& diagnostic : placed_in_table(result.diagnostics(), text)) {
    if (diagnostic.place.file == nullptr) diagnostic.place = text.place;
    diagnostics.push_back(std::move(diagnostic));
  }
  if (!result) return std::nullopt;
  return std::move(*result);
}

/// What `read` gives; a file that a row names and that is missing is this row's error, and not the end of all others.
template <class Read>
auto or_missing(Read read) -> decltype(read()) {
  try {
    return read();
  } catch (const MachineError& error) {
    return make_error("table.file", error.what());
  }
}

Result<ClusterSpec> cluster_of(const RowText& text) {
  if (text.text == nullptr) return or_missing([&] { return load_cluster(text.name); });
  const auto document = parse_document(text.text);
  if (!document) return document.diagnostics();
  return read_cluster(*document, "cluster");
}

Machine machine_of(const RowText& text, const std::string& calibration) {
  Machine machine;
  machine.cluster = taken(cluster_of(text), text, machine.diagnostics);
  if (machine.cluster) {
    machine.calibration = taken(load_calibration(calibration, *machine.cluster), {}, machine.diagnostics);
  }
  return machine;
}

/// What became of one row.
struct Answer {
  std::vector<Comparison> rows, apart;
  std::size_t first_steps = 0;
  std::vector<Unanswered> unanswered;
  Diagnostics diagnostics;
};

class RowValidation {
 public:
  RowValidation(const MeasuredRow& row, const Machine& machine) : row_(row), machine_(machine) {}

  Answer run() {
    std::optional<Scenario> scenario = read();
    if (!scenario) return unanswered();
    given_routing_ = scenario->plan.routing.kind == Routing::Kind::histogram;
    check_parameters(*scenario);
    evaluation_ = evaluate(std::move(*scenario), {RankChoice::Kind::one, 0});
    for (const Measurement& measurement : row_.measurements) compare(measurement);
    return std::move(answer_);
  }

 private:
  /// What the row's inputs lack is told as warnings: the row is listed with its reason, and the table is in order.
  Answer unanswered() {
    std::string reason;
    for (Diagnostic& diagnostic : answer_.diagnostics) {
      if (diagnostic.severity != Severity::error) continue;
      if (reason.empty()) reason = diagnostic.message;
      diagnostic.severity = Severity::warning;
      diagnostic.message = fmt::format("row {}: {}", row_.id, diagnostic.message);
    }
    answer_.unanswered.push_back({row_.id, std::move(reason)});
    return std::move(answer_);
  }

  std::optional<Scenario> read() {
    Diagnostics& diagnostics = answer_.diagnostics;
    diagnostics = machine_.diagnostics;
    const std::optional<ModelSpec> model = taken(read_model_text(), row_.model, diagnostics);
    const auto plan = taken(plan_file(), row_.plan, diagnostics);
    if (!model || !plan || !machine_.cluster || !machine_.calibration) return std::nullopt;
    ConfigurationInput input;
    input.file = *plan;
    input.is_ds_config = row_.is_ds_config;
    input.overrides = row_.sets;
    input.model = &*model;
    input.cluster = &*machine_.cluster;
    CheckReport report = check_configuration(input);
    for (Diagnostic& diagnostic : placed_in_table(std::move(report.diagnostics), row_.plan)) {
      if (diagnostic.place.file == nullptr) diagnostic.place = row_.place;
      if (diagnostic.severity == Severity::error) diagnostics.push_back(std::move(diagnostic));
    }
    if (!report.plan) return std::nullopt;
    return Scenario{*model, *machine_.cluster, std::move(*report.plan)};
  }

  Result<ModelSpec> read_model_text() const {
    if (row_.model.text == nullptr) return or_missing([&] { return load_model(row_.model.name); });
    const auto document = parse_document(row_.model.text, Syntax::json);
    if (!document) return document.diagnostics();
    return read_model(*document, row_.id);
  }

  /// The plan's file; null where columns of their own state its keys.
  Result<std::shared_ptr<const SourceFile>> plan_file() const {
    if (row_.plan.name.empty()) return row_.plan.text;
    return or_missing([&]() -> Result<std::shared_ptr<const SourceFile>> { return load_source(row_.plan.name); });
  }

  /// A table that counts other parameters was measured with another model.  Native experts replace MLPs, which a
  /// config.json does not show, and adapters may be counted or not.
  void check_parameters(const Scenario& scenario) {
    const bool native = scenario.plan.moe.implementation == MoeImplementation::native;
    if (row_.parameters == 0 || native || scenario.plan.lora) return;
    const std::int64_t total = count_parameters(scenario.model).total;
    if (total == row_.parameters) return;
    Diagnostic diagnostic;
    diagnostic.severity = Severity::warning;
    diagnostic.code = "table.parameters";
    diagnostic.place = row_.model.place;
    diagnostic.message =
        fmt::format("row {}: {} parameters are stated, and this model has {}", row_.id, row_.parameters, total);
    answer_.diagnostics.push_back(std::move(diagnostic));
  }

  struct Prediction {
    double value = 0;
    std::optional<Interval> interval;
  };

  static Prediction of(const Figure& figure) { return {static_cast<double>(figure.value.count), figure.interval}; }
  static Prediction of(Bytes bytes) { return {static_cast<double>(bytes.count), std::nullopt}; }

  std::optional<Prediction> predict(const std::string& figure) {
    const Ledger& ledger = evaluation_.ledger;
    if (figure == "allocated_peak") return of(ledger.allocated_peak);
    if (figure == "reserved_peak") return of(ledger.reserved_peak);
    if (figure == "device_peak") return of(ledger.device_peak);
    if (figure == "step_time") return step_time();
    if (figure.starts_with("file.")) return file_size(figure.substr(5));
    const std::size_t dot = figure.rfind('.');
    return of_phase(figure.substr(0, dot), figure.substr(dot + 1));
  }

  std::optional<Prediction> of_phase(const std::string& phase, const std::string& figure) const {
    const Ledger& ledger = evaluation_.ledger;
    for (std::size_t i = 0; i < ledger.replay.phases.size(); ++i) {
      const PhaseMemory& memory = ledger.replay.phases[i];
      if (memory.name != phase) continue;
      if (figure == "allocated_end") return of(memory.allocated_end);
      if (figure == "allocated_peak") return of(memory.allocated_peak);
      if (figure == "reserved_end") return of(memory.reserved_end);
      if (figure == "host_resident_end") return of(ledger.host[i].resident_end);
      if (figure == "host_resident_peak") return of(ledger.host[i].resident_peak);
      if (figure == "host_pinned") return of(ledger.host[i].pinned);
    }
    return std::nullopt;
  }

  std::optional<Prediction> step_time() {
    const Timeline timeline = simulate_step(evaluation_.program, evaluation_.scenario.cluster, *machine_.calibration);
    if (!timeline.unfinished.empty()) return std::nullopt;
    return Prediction{to_seconds(timeline.step_time), std::nullopt};
  }

  /// Files are told by the folder given and their own name; the folder between counts the steps.
  std::optional<Prediction> file_size(const std::string& file) const {
    const auto ends_of = [](const std::string& name) {
      return std::pair(name.substr(0, name.find('/')), name.substr(name.rfind('/') + 1));
    };
    for (const CheckpointFile& known : checkpoint_files(evaluation_.scenario)) {
      if (ends_of(known.name) == ends_of(file)) return of(known.bytes);
    }
    return std::nullopt;
  }

  bool is_compared(const Measurement& measurement) const {
    const std::string& figure = measurement.figure;
    if (figure.starts_with("file.")) return measurement.value >= megabyte;
    const std::size_t dot = figure.rfind('.');
    if (dot == std::string::npos || figure.substr(dot + 1).starts_with("host_")) return true;
    if (figure.starts_with("steady_") || figure.starts_with("save_")) return true;
    return row_.fresh && !(given_routing_ && figure.starts_with("first_step_"));
  }

  bool hangs_on_history(const std::string& figure) const {
    if (!given_routing_ || evaluation_.context.in_arena) return false;
    return figure == "device_peak" || figure.find("reserved") != std::string::npos;
  }

  void compare(const Measurement& measurement) {
    if (!is_compared(measurement)) {
      if (row_.fresh && given_routing_ && measurement.figure.starts_with("first_step_")) ++answer_.first_steps;
      return;
    }
    const std::optional<Prediction> prediction = predict(measurement.figure);
    if (!prediction) {
      answer_.unanswered.push_back({row_.id, fmt::format("{} is not predicted", measurement.figure)});
      return;
    }
    Comparison comparison;
    comparison.id = row_.id;
    comparison.figure = measurement.figure;
    comparison.predicted = prediction->value;
    comparison.measured = measurement.value;
    comparison.interval = prediction->interval;
    comparison.place = place_in(row_.place.file, measurement.begin, measurement.end, measurement.pointer);
    const bool is_little = !comparison.is_time() && comparison.measured < megabyte;
    const double base = is_little ? std::max(comparison.predicted, megabyte) : comparison.measured;
    comparison.error = (comparison.predicted - comparison.measured) / base;
    if (is_in_other_unit(comparison)) return;
    (hangs_on_history(comparison.figure) ? answer_.apart : answer_.rows).push_back(std::move(comparison));
  }

  /// A ratio that is a power of 1000 or 1024, give or take what a prediction may be off, is a unit and no error.
  bool is_in_other_unit(const Comparison& comparison) {
    static constexpr std::array<double, 6> powers = {1e3, 1024, 1e6, 1 << 20, 1e9, 1 << 30};
    if (comparison.predicted <= 0 || comparison.measured <= 0) return false;
    if (!comparison.is_time() && std::max(comparison.predicted, comparison.measured) < 100 * megabyte) return false;
    const double ratio = comparison.predicted / comparison.measured;
    const double factor = std::max(ratio, 1 / ratio);
    const double tolerance = comparison.is_time() ? 1.3 : 1.1;
    const bool is_unit = std::any_of(powers.begin(), powers.end(), [&](double power) {
      return factor > power / tolerance && factor < power * tolerance;
    });
    if (!is_unit) return false;
    std::string reason =
        fmt::format("{} of {:g} is {:.4g} times the prediction: another unit than {}", comparison.figure,
                    comparison.measured, 1 / ratio, comparison.is_time() ? "seconds" : "bytes");
    Diagnostic diagnostic;
    diagnostic.code = "table.unit";
    diagnostic.place = comparison.place;
    diagnostic.message = fmt::format("row {}: {}", row_.id, reason);
    answer_.diagnostics.push_back(std::move(diagnostic));
    answer_.unanswered.push_back({row_.id, std::move(reason)});
    return true;
  }

  const MeasuredRow& row_;
  const Machine& machine_;
  Evaluation evaluation_;
  bool given_routing_ = false;
  Answer answer_;
};

template <class T>
void append(std::vector<T>& all, std::vector<T> more) {
  std::move(more.begin(), more.end(), std::back_inserter(all));
}

}  // namespace

Validation validate(std::vector<MeasuredTable> tables, const std::string& calibration) {
  Validation validation;
  std::map<std::string, Machine> machines;
  std::vector<std::pair<const MeasuredRow*, const Machine*>> work;
  for (MeasuredTable& table : tables) {
    append(validation.diagnostics, std::move(table.diagnostics));
    append(validation.unanswered, std::move(table.unanswered));
    for (const MeasuredRow& row : table.rows) {
      const std::string key = row.cluster.text != nullptr ? row.cluster.text->text : row.cluster.name;
      auto found = machines.find(key);
      if (found == machines.end()) found = machines.emplace(key, machine_of(row.cluster, calibration)).first;
      work.emplace_back(&row, &found->second);
    }
  }
  // What is to be said of a machine is said once; what it lacks is each of its rows' reason.
  for (auto& [key, machine] : machines) {
    const auto said = std::stable_partition(machine.diagnostics.begin(), machine.diagnostics.end(),
                                            [](const Diagnostic& d) { return d.severity == Severity::error; });
    validation.diagnostics.insert(validation.diagnostics.end(), said, machine.diagnostics.end());
    machine.diagnostics.erase(said, machine.diagnostics.end());
  }
  std::vector<Answer> answers(work.size());
  in_parallel(std::min(most_at_once, all_cores()), work.size(),
              [&](std::size_t i) { answers[i] = RowValidation(*work[i].first, *work[i].second).run(); });
  for (Answer& answer : answers) {
    append(validation.rows, std::move(answer.rows));
    append(validation.apart, std::move(answer.apart));
    validation.first_steps += answer.first_steps;
    append(validation.unanswered, std::move(answer.unanswered));
    append(validation.diagnostics, std::move(answer.diagnostics));
  }
  return validation;
}

}  // namespace plimsoll
