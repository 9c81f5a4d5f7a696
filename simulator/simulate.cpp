// Which ranks are on the clock, how fast are their hosts and how far do clocks sag (simulator/timeline.hpp)?
//
// Slow hosts.  Let rank r's host have w_r to do, at a speed drawn evenly from 1 - s to 1 + s of the calibrated one, s being the
// spread.  The step waits for the last: it is expected after
//   E[max_r] = integral over x >= 0 of 1 - prod_r F_r(x),   F_r(x) = clamp((x / w_r - (1 - s)) / 2 s, 0, 1)
// which is (1 + s (n - 1) / (n + 1)) w where all n have the same to do.  One more class runs the program with most to do, on a
// host so slow that it takes that long.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include <fmt/format.h>

#include "simulator/event_loop.hpp"

namespace plimsoll {

namespace {

/// By how much longer than the calibrated host's the slowest of all is expected to take over the class with most to do.
double expected_skew(const StepProgram& program, const std::vector<RanksOnClock>& ranks, double spread) {
  const auto work = [&](std::size_t c) { return to_seconds(ranks[c].priced->host); };
  double most = 0;
  for (std::size_t c = 0; c < ranks.size(); ++c) most = std::max(most, work(c));
  if (ranks.size() == 1 || most <= 0 || spread <= 0) {
    const double n = program.world_size;
    return spread * (n - 1) / (n + 1);
  }
  constexpr int intervals = 4096;
  const double width = 2 * spread * most / intervals;
  std::map<double, int> ranks_by_work;
  for (std::size_t c = 0; c < ranks.size(); ++c)
    if (work(c) > 0) ranks_by_work[work(c)] += program.classes[c].ranks;
  const auto all_done = [&](int i) {
    const double x = (1 - spread) * most + (i + 0.5) * width;
    double product = 1;
    for (const auto& [work_s, count] : ranks_by_work) {
      const double share = std::clamp((x / work_s - (1 - spread)) / (2 * spread), 0.0, 1.0);
      if (share < 1) product *= std::pow(share, count);
    }
    return product;
  };
  // Of many ranks it is hardly ever that all have ended: from the last interval down to where that no longer counts.
  constexpr double too_little_to_count = 1e-17;
  double expected = most * (1 + spread);
  for (int i = intervals - 1; i >= 0; --i) {
    const double done = all_done(i);
    if (done < too_little_to_count) break;
    expected -= done * width;
  }
  return std::max(0.0, expected / most - 1);
}

/// The class whose host has most to do.
std::size_t busiest_host(const std::vector<RanksOnClock>& ranks, std::size_t classes) {
  std::size_t busiest = 0;
  for (std::size_t c = 1; c < classes; ++c)
    if (ranks[c].priced->host > ranks[busiest].priced->host) busiest = c;
  return busiest;
}

/// The class that a rank belongs to: its own, else that of most ranks.
std::size_t class_of(const StepProgram& program, int rank) {
  std::size_t commonest = 0;
  for (std::size_t c = 0; c < program.classes.size(); ++c) {
    if (program.classes[c].example_rank == rank) return c;
    if (program.classes[c].ranks > program.classes[commonest].ranks) commonest = c;
  }
  return commonest;
}

}  // namespace

Timeline simulate_step(const StepProgram& program, const ClusterSpec& cluster, const Calibration& calibration,
                       const SimulateOptions& options) {
  const Prices prices(calibration, cluster, program, 1), doubled(calibration, cluster, program, 2);
  std::vector<RanksOnClock> ranks;
  for (const RankClass& ranks_of_class : program.classes) {
    RanksOnClock& clocked = ranks.emplace_back();
    clocked.of_class = static_cast<std::uint16_t>(ranks.size() - 1);
    clocked.name = fmt::format("rank {}", ranks_of_class.example_rank);
    clocked.priced = std::make_shared<const PricedProgram>(
        priced_program(ranks_of_class.program, program, ranks_of_class.example_rank, prices, doubled));
    clocked.compute_factor = options.kernel_factor;
    clocked.host_factor = clocked.memory_factor = options.host_factor;
  }
  if (program.world_size > 1) {
    const double skew =
        options.host_skew < 0 ? expected_skew(program, ranks, calibration.host.spread) : options.host_skew;
    if (skew > 0) {
      ranks.push_back(ranks[busiest_host(ranks, program.classes.size())]);
      ranks.back().host_factor *= 1 + skew;
      ranks.back().name += ", slowest host";
    }
  }
  for (const auto& [rank, factor] : options.stragglers) {
    ranks.push_back(ranks[class_of(program, rank)]);
    ranks.back().compute_factor *= factor;
    ranks.back().name = fmt::format("rank {}, straggler", rank);
  }
  // Clocks sag by the matrix work over the step time, which the sag lengthens: from the least time that the step can take,
  // then, where it took longer, from the time that it took.
  const PricedProgram& first = *ranks.front().priced;
  const double matrix_s = first.matrix_s;
  const int gpus = program.world_size;
  const double sag = sag_of(calibration.gemm, gpus, matrix_s, least_step_s(first, calibration.gemm, gpus));
  EventLoop loop(std::move(ranks), prices, program.groups.size(), options.tell_of);
  Timeline& timeline = loop.run(sag);
  const double settled = sag_of(calibration.gemm, gpus, matrix_s, to_seconds(timeline.step_time));
  constexpr double worth_another_run = 0.002;
  if (sag - settled > worth_another_run && timeline.unfinished.empty()) loop.run(settled);
  return std::move(timeline);
}

}  // namespace plimsoll
