// plimsoll max: how large may micro_batch or sequence be?  Doubling until it no longer fits, then bisection, each step on the
// ledger itself; the answer is a value that fits whose successor does not.  Where a ds_config.json states the global batch, it
// stays by accumulation: then the micro-batches are divisors of a rank's sequences, each tried from the largest on.
//
// An arena is up to a few percent larger than what is alive at its peak, now more, now less, so that a value may fit though a
// smaller one does not.  What is alive only grows: so for engine plimsoll the two steps find the largest value whose tensors
// alone fit, and from there down the first whose arena does, some values at once on all cores.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <vector>

#include "planner/base/format.hpp"
#include "planner/base/in_parallel.hpp"
#include "planner/cli/commands.hpp"
#include "planner/cli/common_inputs.hpp"
#include "planner/cli/in_words.hpp"
#include "planner/cli/json_output.hpp"
#include "planner/cli/terminal.hpp"
#include "planner/spec/limits.hpp"

namespace plimsoll {
namespace {

struct MaxOptions {
  InputOptions inputs;
  std::string key;
};

class Maximum {
 public:
  Maximum(const Inputs& inputs, std::string key)
      : inputs_(inputs), own_(inputs.scenario()), key_(std::move(key)), micro_batch_(key_ == "micro_batch") {
    const std::int64_t batch = micro_batch_ ? inputs.report().global_batch : 0;
    of_a_rank_ = batch / own_.plan.world_size;
    for (std::int64_t value = 1; value <= std::min(of_a_rank_, bound()); ++value)
      if (of_a_rank_ % value == 0 && with(value)) divisors_.push_back(value);
    least_ = divisors_.empty() ? least_legal() : divisors_.front();
  }

  /// With that value of the key; the reasons, if it is refused.
  Result<Scenario> with(std::int64_t value) const { return inputs_.varied({fmt::format("{}={}", key_, value)}); }

  /// The least value that the rules allow.
  std::int64_t least() const { return least_; }

  /// The largest value that fits; 0 if none does.
  std::int64_t search() {
    if (keeps_batch()) {
      const auto found = std::find_if(divisors_.rbegin(), divisors_.rend(), [&](std::int64_t v) { return fits(v); });
      return found == divisors_.rend() ? 0 : *found;
    }
    const bool in_arena = own_.plan.engine == Engine::plimsoll;
    const auto may_fit = [&](std::int64_t value) { return in_arena ? !fit_at(value).by_tensors : fits(value); };
    std::int64_t largest = largest_that(may_fit);
    if (!in_arena) return largest;
    if (largest > 0 && breaks_on_host_alone(fit_at(least_))) return 0;
    return first_that_fits_from(largest);
  }

  /// Why it is no more than that value, in words.
  std::string why_not_more(std::int64_t value) const {
    std::int64_t next = value + 1;
    std::string text;
    if (keeps_batch()) {
      text =
          fmt::format("\nThe global batch of {} stays, by accumulation: only divisors of the {} of a rank were tried.",
                      format_count(inputs_.report().global_batch), counted(of_a_rank_, "sequence"));
      const auto larger = std::upper_bound(divisors_.begin(), divisors_.end(), value);
      if (larger == divisors_.end()) return "No larger one is legal." + text;
      next = *larger;
    }
    if (next > bound()) return "Larger ones are not answered.";
    const Result<Scenario> refused = with(next);
    return fmt::format("{} = {} {}.{}", key_, format_count(next),
                       refused ? "does not fit" : "is refused: " + refusal_in_words(refused.diagnostics()), text);
  }

 private:
  /// True where a stated global batch is to stay: the legal values are divisors of a rank's sequences.
  bool keeps_batch() const { return !divisors_.empty(); }

  /// Of no stated batch.  What rules ask at least (tokens for a capacity, rows of a histogram) they ask up to some value.
  std::int64_t least_legal() const {
    std::int64_t refused = 0, legal = micro_batch_ ? own_.plan.micro_batch : own_.plan.sequence;
    for (std::int64_t value = 1; legal - refused > 1; value = refused + (legal - refused) / 2)
      (with(value) ? legal : refused) = value;
    return legal;
  }

  /// @param holds true up to some value and false beyond it
  template <class Holds>
  std::int64_t largest_that(Holds holds) const {
    std::int64_t low = 0, high = least_;
    while (holds(high)) {
      low = high;
      if (high == bound()) return high;
      high = std::min(2 * high, bound());
    }
    while (low > 0 && high - low > 1) {
      const std::int64_t middle = low + (high - low) / 2;
      (holds(middle) ? low : high) = middle;
    }
    return low;
  }

  /// Downwards.
  std::int64_t first_that_fits_from(std::int64_t value) const {
    constexpr std::int64_t at_once = 16;
    for (; value >= least_; value -= at_once) {
      tell(value);
      std::vector<Verdict> verdicts(static_cast<std::size_t>(std::min(at_once, value - least_ + 1)));
      in_parallel(all_cores(), verdicts.size(),
                  [&](std::size_t i) { verdicts[i] = verdict_at(value - static_cast<std::int64_t>(i)).verdict; });
      const auto found =
          std::find_if(verdicts.begin(), verdicts.end(), [](Verdict verdict) { return verdict != Verdict::oom; });
      if (found != verdicts.end()) return value - (found - verdicts.begin());
    }
    return 0;
  }

  std::int64_t bound() const {
    const std::int64_t other = micro_batch_ ? own_.plan.sequence : own_.plan.micro_batch;
    return std::min(micro_batch_ ? limits::micro_batch : limits::sequence,
                    std::max<std::int64_t>(1, limits::tokens / other));
  }

  void tell(std::int64_t value) const { progress_.step(fmt::format("{} = {}", key_, value)); }
  /// A value that the rules refuse is beyond the device as well.
  Fit verdict_at(std::int64_t value) const {
    const Result<Scenario> scenario = with(value);
    return scenario ? fit_of(*scenario) : Fit{Verdict::oom, Bytes(0), true};
  }
  Fit fit_at(std::int64_t value) const {
    tell(value);
    return verdict_at(value);
  }
  bool fits(std::int64_t value) const { return fit_at(value).verdict != Verdict::oom; }
  /// The host's memory, which no smaller value relieves; a device that lacks nothing has a margin.
  static bool breaks_on_host_alone(const Fit& fit) { return fit.verdict == Verdict::oom && fit.margin.count >= 0; }

  const Inputs& inputs_;
  const Scenario own_;
  std::string key_;
  bool micro_batch_;
  std::int64_t of_a_rank_ = 0;          ///< sequences of a stated global batch
  std::vector<std::int64_t> divisors_;  ///< of them, legal as micro-batches, ascending
  std::int64_t least_ = 1;
  mutable Progress progress_{"max"};
};

void print_maximum(const std::string& key, std::int64_t value, const Maximum& search, const Evaluation& evaluation) {
  const Ledger& ledger = evaluation.ledger;
  if (value == 0) {
    print(fmt::format("{}: not even {} = {} fits\n{}\n{}\n", paint("none", Colour::red), key,
                      format_count(search.least()), scenario_in_words(evaluation.scenario), lack_in_words(ledger)));
    return;
  }
  print(fmt::format("{} = {}: {}, margin {} GiB of {}\n{}\n", key, paint(format_count(value), Colour::bold),
                    paint(name_of(ledger.verdict), colour_of(ledger.verdict)), gibibytes(ledger.margin),
                    gibibytes(ledger.capacity), scenario_in_words(evaluation.scenario)));
  print(search.why_not_more(value) + "\n");
}

int maximum(const MaxOptions& options) {
  const std::optional<Inputs> inputs = load_scenario(options.inputs);
  if (!inputs) return exit_code::input;
  Maximum search(*inputs, options.key);
  std::int64_t value = search.search();
  const Evaluation evaluation = evaluate(*search.with(std::max(search.least(), value)));
  // The whole ledger has the last word: "none" is told of what it finds beyond the memory alone.
  if (value == 0 && evaluation.ledger.verdict != Verdict::oom) value = search.least();
  if (options.inputs.json) {
    print(max_json(options.key, value, evaluation));
  } else {
    print_maximum(options.key, value, search, evaluation);
  }
  if (value > 0) return exit_code::ok;
  finish_output();
  fmt::print(stderr, "plimsoll max: not even {} = {} fits\n", options.key, format_count(search.least()));
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
