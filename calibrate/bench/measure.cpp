// The loop over the points (calibrate/bench/measure.hpp).
#include "calibrate/bench/measure.hpp"

#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <string_view>

#include "calibrate/samples/rounds.hpp"
#include "planner/base/format.hpp"
#include "planner/base/machine_error.hpp"

namespace plimsoll::calibrate {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Google Benchmark's display is replaced by one line a point, on standard error.
class Quiet : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context& /*context*/) override { return true; }
  void ReportRuns(const std::vector<Run>& /*runs*/) override {}
};

constexpr std::string_view go = "go ";  // what rank 0 says before the key of the point that is next

class Loop {
 public:
  Loop(const std::vector<Case>& cases, Backend& backend, Ranks& ranks, SampleLog* log, const MeasureOptions& options)
      : cases_(cases), backend_(backend), ranks_(ranks), log_(log), options_(options) {}

  MeasureReport run() {
    for (std::size_t i = 0; i < cases_.size(); ++i) {
      benchmark::RegisterBenchmark(key_of(cases_[i].point).c_str(),
                                   [this, i](benchmark::State& state) { step(i, state); })
          ->Iterations(1)
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond);
    }
    std::vector<std::string> arguments{"plimsoll-calibrate"};
    for (const std::string& flag : options_.benchmark_flags) {
      // One file of results, from the rank that measures.
      if (ranks_.rank() == 0 || !flag.starts_with("--benchmark_out")) arguments.push_back(flag);
    }
    std::vector<char*> pointers;
    pointers.reserve(arguments.size());
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    auto count = static_cast<int>(pointers.size());
    benchmark::Initialize(&count, pointers.data());
    Quiet quiet;
    report_.any = benchmark::RunSpecifiedBenchmarks(&quiet) > 0;
    benchmark::ClearRegisteredBenchmarks();
    ranks_.unwatch();
    if (error_) std::rethrow_exception(error_);
    ranks_.broadcast("end");  // a rank that left while rank 0 still measures alone would be taken for dead
    report_.seconds = since(start_);
    return report_;
  }

 private:
  void step(std::size_t index, benchmark::State& state) {
    if (error_) return state.SkipWithError("stopped");
    try {
      const Case& next = cases_[index];
      const std::string verdict = ranks_.broadcast(ranks_.rank() == 0 ? decide(next) : std::string());
      const std::string key = key_of(next.point);
      if (verdict.starts_with(go) && verdict.substr(go.size()) != key)
        throw MachineError(fmt::format("rank 0 measures {}, this rank {}: all ranks need the same options",
                                       verdict.substr(go.size()), key));
      if (!verdict.starts_with(go)) return state.SkipWithError(verdict.c_str());
      if (!next.shared && ranks_.rank() != 0) return state.SkipWithError("rank 0 measures this");
      measure(next, state);
    } catch (...) {
      error_ = std::current_exception();
      state.SkipWithError("stopped");
    }
  }

  std::string decide(const Case& next) {
    if (log_->has(next.point)) {
      ++report_.already_there;
      return "measured before";
    }
    if (options_.budget_s > 0 && since(options_.began) > options_.budget_s) {
      ++report_.left;
      return "the budget is spent";
    }
    return std::string(go) + key_of(next.point);
  }

  void measure(const Case& next, benchmark::State& state) {
    const std::string key = key_of(next.point);
    ranks_.watch(key, [this, key] {
      if (log_) log_->append(Failure{key, "did not end within the timeout"});
    });
    std::string reason;
    std::unique_ptr<Work> work;
    try {
      work = backend_.prepare(next.point);
    } catch (const std::exception& error) {
      reason = error.what();
    }
    // All or none: a rank that could not prepare must not leave the others waiting in a collective.
    const bool ready = next.shared ? ranks_.all(work != nullptr) : work != nullptr;
    if (!ready && reason.empty()) reason = "another rank could not prepare it";
    Sample sample;
    if (ready) {
      try {
        sample = measure_point(next.point, *work, ranks_, next.shared, options_);
      } catch (const Unsupported& error) {
        reason = error.what();
      } catch (const MachineError& error) {
        if (next.shared && ranks_.world() > 1) throw;
        reason = error.what();
      }
    }
    work.reset();
    ranks_.unwatch();
    if (reason.empty()) {
      finish(sample, state);
    } else {
      fail(key, reason, state);
    }
  }

  void finish(Sample& sample, benchmark::State& state) {
    const Conditions conditions = backend_.conditions();
    if (conditions.clock_mhz > 0) sample.figures["clock_mhz"] = conditions.clock_mhz;
    if (!conditions.doubt.empty()) sample.note += (sample.note.empty() ? "" : "; ") + conditions.doubt;
    for (auto _ : state) state.SetIterationTime(sample.time_s);
    state.counters["low_s"] = sample.low_s;
    state.counters["high_s"] = sample.high_s;
    state.counters["repetitions"] = sample.repetitions;
    if (!log_) return;
    log_->append(sample);
    ++report_.measured;
    say(fmt::format("{:>10} +-{:4.1f} %  {}{}", format(Seconds(sample.time_s)),
                    sample.time_s > 0 ? 50 * (sample.high_s - sample.low_s) / sample.time_s : 0, key_of(sample.point),
                    sample.note.empty() ? "" : "  (" + sample.note + ")"));
  }

  void fail(const std::string& key, const std::string& reason, benchmark::State& state) {
    state.SkipWithError(reason.c_str());
    if (log_) {
      log_->append(Failure{key, reason});
      ++report_.failed;
      say(fmt::format("{:>10}           {}: {}", "failed", key, reason));
    }
    if (backend_.lost())
      throw MachineError(fmt::format("the device is lost after {}: {} (--resume goes on)", key, reason));
  }

  void say(const std::string& line) {
    const int done = report_.measured + report_.failed + report_.already_there;
    if (isatty(STDERR_FILENO) != 0 || since(start_) > 2) fmt::print(stderr, "{:>5}/{} {}\n", done, cases_.size(), line);
  }

  const std::vector<Case>& cases_;
  Backend& backend_;
  Ranks& ranks_;
  SampleLog* log_;
  const MeasureOptions& options_;
  MeasureReport report_;
  std::exception_ptr error_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace

Sample measure_point(const Point& point, Work& work, Ranks& ranks, bool shared, const MeasureOptions& options) {
  Sample sample;
  sample.point = point;
  sample.source = "bench";
  const bool alone = !shared || ranks.world() == 1;
  std::vector<double> times;
  if (work.once()) {
    times = work.run(1);
  } else {
    work.run(1);  // warm-up: lazily loaded kernels, first touch
    const Clock::time_point before = Clock::now();
    work.run(1);
    // Of the whole run, with its rests and what else it measures beside the time.
    const double one_s = alone ? since(before) : ranks.maximum(since(before));
    const int batch = std::clamp(static_cast<int>(0.02 / std::max(one_s, 1e-9)), 3, 50);
    const Clock::time_point start = Clock::now();
    while (true) {
      const auto more = work.run(batch);
      times.insert(times.end(), more.begin(), more.end());
      const MedianInterval now = median_interval(times);
      const bool narrow = times.size() >= 9 && now.high - now.low <= 2 * options.narrow * now.median;
      const bool late = since(start) > options.point_s && times.size() >= fewest_values;
      bool done = narrow || late || times.size() >= 1000;
      if (!alone) done = ranks.maximum(ranks.rank() == 0 && done ? 1 : 0) > 0;
      if (done) break;
    }
  }
  const MedianInterval interval = median_interval(times);
  sample.time_s = interval.median;
  sample.low_s = interval.low;
  sample.high_s = interval.high;
  sample.repetitions = static_cast<int>(times.size());
  sample.figures = work.figures();
  if (interval.high - interval.low > 0.1 * interval.median && !work.once())
    sample.note = fmt::format("interval {:.0f} % wide", 100 * (interval.high - interval.low) / interval.median);
  return sample;
}

MeasureReport measure_all(const std::vector<Case>& cases, Backend& backend, Ranks& ranks, SampleLog* log,
                          const MeasureOptions& options) {
  return Loop(cases, backend, ranks, log, options).run();
}

}  // namespace plimsoll::calibrate
