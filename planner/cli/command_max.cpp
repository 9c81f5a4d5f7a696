// plimsoll max: how large may micro_batch or sequence be?  Doubling until it no longer fits, then bisection, each step on the
// ledger itself; the answer is a value that fits whose successor does not.
//
// An arena is up to a few percent larger than what is alive at its peak, now more, now less, so that a value may fit though a
// smaller one does not.  What is alive only grows: so for engine plimsoll the two steps find the largest value whose tensors
// alone fit, and from there down the first whose arena does, some values at once on all cores.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "planner/base/format.hpp"
#include "planner/cli/commands.hpp"
#include "planner/cli/common_inputs.hpp"
#include "planner/cli/in_words.hpp"
#include "planner/cli/json_output.hpp"
#include "planner/cli/terminal.hpp"
#include "planner/search/in_parallel.hpp"
#include "planner/spec/legality.hpp"
#include "planner/spec/limits.hpp"

namespace plimsoll {
namespace {

struct MaxOptions {
  InputOptions inputs;
  std::string key;
};

class Maximum {
 public:
  Maximum(Scenario scenario, bool micro_batch) : scenario_(std::move(scenario)), micro_batch_(micro_batch) {}

  Scenario with(std::int64_t value) const {
    Scenario scenario = scenario_;
    (micro_batch_ ? scenario.plan.micro_batch : scenario.plan.sequence) = value;
    return scenario;
  }

  /// The largest value that fits; 0 if none does.
  std::int64_t search() {
    const bool in_arena = scenario_.plan.engine == Engine::plimsoll;
    const auto may_fit = [&](std::int64_t value) { return in_arena ? !fit_at(value).by_tensors : fits(value); };
    std::int64_t largest = largest_that(may_fit);
    if (!in_arena) return largest;
    if (largest > 0 && breaks_on_host_alone(fit_at(1))) return 0;
    return first_that_fits_from(largest);
  }

 private:
  /// @param holds true up to some value and false beyond it
  template <class Holds>
  std::int64_t largest_that(Holds holds) const {
    std::int64_t low = 0, high = 1;
    while (holds(high)) {
      low = high;
      if (high == bound()) return high;
      high = std::min(2 * high, bound());
    }
    while (high - low > 1) {
      const std::int64_t middle = low + (high - low) / 2;
      (holds(middle) ? low : high) = middle;
    }
    return low;
  }

  /// Downwards.
  std::int64_t first_that_fits_from(std::int64_t value) const {
    constexpr std::int64_t at_once = 16;
    const auto threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    for (; value > 0; value -= at_once) {
      tell(value);
      std::vector<Verdict> verdicts(static_cast<std::size_t>(std::min(at_once, value)));
      in_parallel(threads, verdicts.size(),
                  [&](std::size_t i) { verdicts[i] = verdict_at(value - static_cast<std::int64_t>(i)).verdict; });
      const auto found =
          std::find_if(verdicts.begin(), verdicts.end(), [](Verdict verdict) { return verdict != Verdict::oom; });
      if (found != verdicts.end()) return value - (found - verdicts.begin());
    }
    return 0;
  }

  std::int64_t bound() const {
    const std::int64_t other = micro_batch_ ? scenario_.plan.sequence : scenario_.plan.micro_batch;
    return std::min(micro_batch_ ? limits::micro_batch : limits::sequence,
                    std::max<std::int64_t>(1, limits::tokens / other));
  }

  void tell(std::int64_t value) const {
    progress_.step(fmt::format("{} = {}", micro_batch_ ? "micro_batch" : "sequence", value));
  }
  /// A value that the rules refuse is beyond the device as well.
  Fit verdict_at(std::int64_t value) const {
    const Scenario scenario = with(value);
    if (!is_legal({scenario.plan, &scenario.model, &scenario.cluster})) return {Verdict::oom, Bytes(0), true};
    return fit_of(scenario);
  }
  Fit fit_at(std::int64_t value) const {
    tell(value);
    return verdict_at(value);
  }
  bool fits(std::int64_t value) const { return fit_at(value).verdict != Verdict::oom; }
  /// The host's memory, which no smaller value relieves; a device that lacks nothing has a margin.
  static bool breaks_on_host_alone(const Fit& fit) { return fit.verdict == Verdict::oom && fit.margin.count >= 0; }

  Scenario scenario_;
  bool micro_batch_;
  mutable Progress progress_{"max"};
};

void print_maximum(const std::string& key, std::int64_t value, const Evaluation& evaluation) {
  const Ledger& ledger = evaluation.ledger;
  if (value == 0) {
    print(fmt::format("{}: not even {} = 1 fits\n{}\nIt lacks {} in {}: {}\n", paint("none", Colour::red), key,
                      scenario_in_words(evaluation.scenario), lack_in_words(ledger), ledger.breaks_phase,
                      ledger.breaks_tensor));
    return;
  }
  print(fmt::format("{} = {}: {}, margin {} GiB of {}\n{}\n", key, paint(format_count(value), Colour::bold),
                    paint(name_of(ledger.verdict), colour_of(ledger.verdict)), gibibytes(ledger.margin),
                    gibibytes(ledger.capacity), scenario_in_words(evaluation.scenario)));
  print(fmt::format("{} = {} does not fit.\n", key, format_count(value + 1)));
}

int maximum(const MaxOptions& options) {
  const std::optional<Inputs> inputs = load_scenario(options.inputs);
  if (!inputs) return exit_code::input;
  Maximum search(inputs->scenario(), options.key == "micro_batch");
  const std::int64_t value = search.search();
  const Evaluation evaluation = evaluate(search.with(std::max<std::int64_t>(1, value)));
  if (options.inputs.json) {
    print(max_json(options.key, value, evaluation));
  } else {
    print_maximum(options.key, value, evaluation);
  }
  if (value > 0) return exit_code::ok;
  finish_output();
  fmt::print(stderr, "plimsoll max: not even {} = 1 fits\n", options.key);
  return exit_code::no_plan;
}

}  // namespace

std::function<int()> declare_max(CLI::App& app) {
  auto options = std::make_shared<MaxOptions>();
  app.add_option("KEY", options->key, "micro_batch or sequence")
      ->required()
      ->check(CLI::IsMember({"micro_batch", "sequence"}));
  add_common_inputs(app, options->inputs);
  return [options] { return maximum(*options); };
}

}  // namespace plimsoll
