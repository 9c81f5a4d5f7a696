// Which assumption decides?  The recommended plan and the best plan of another kind are simulated again with faster and slower
// links, and with a cheaper and a dearer host; where the order turns, the factor at which both take the same time is found by
// bisection.  For experts, the imbalance up to which the plan still fits.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>

#include "planner/base/format.hpp"
#include "planner/cli/evaluate.hpp"
#include "planner/cli/recommendation.hpp"
#include "planner/spec/legality.hpp"

namespace plimsoll {
namespace {

using Clock = std::chrono::steady_clock;

/// Factors beyond these are no longer a doubt about a figure.
constexpr double most = 4;
constexpr int bisections = 4;

ClusterSpec with_links(ClusterSpec cluster, double factor) {
  for (LinkSpec* link : {&cluster.in_node, &cluster.nic}) link->bandwidth = link->bandwidth * factor;
  return cluster;
}

Calibration with_links(Calibration calibration, double factor) {
  for (CollectivePrice& price : calibration.collectives) {
    for (CollectivePrice::Piece& piece : price.pieces) piece.bytes_per_s *= factor;
    for (auto& [bytes, seconds] : price.points) seconds /= factor;
  }
  return calibration;
}

/// Two plans on one clock.
class Race {
 public:
  Race(const Scenario& first, const Plan& second, const Calibration& calibration)
      : cluster_(first.cluster), calibration_(calibration), first_(build(first).program) {
    Scenario other = first;
    other.plan = second;
    second_ = build(std::move(other)).program;
    tokens_ = tokens_of_step(first.plan) / tokens_of_step(second);
  }

  /// Above 0: the first plan is ahead.
  double lead_with_links(double factor) const {
    const ClusterSpec cluster = with_links(cluster_, factor);
    const Calibration calibration = with_links(calibration_, factor);
    return lead(cluster, calibration, {});
  }
  double lead_with_host(double factor) const {
    SimulateOptions options;
    options.host_factor = factor;
    return lead(cluster_, calibration_, options);
  }

 private:
  double lead(const ClusterSpec& cluster, const Calibration& calibration, const SimulateOptions& options) const {
    const double first = to_seconds(simulate_step(first_, cluster, calibration, options).step_time);
    const double second = to_seconds(simulate_step(second_, cluster, calibration, options).step_time);
    return second * tokens_ / first - 1;
  }

  const ClusterSpec& cluster_;
  const Calibration& calibration_;
  StepProgram first_, second_;
  double tokens_ = 1;
};

/// The factor at which the lead is gone, if it lies between 1 and `end`.
std::optional<double> break_even(const std::function<double(double)>& lead, double end) {
  if (lead(end) >= 0) return std::nullopt;
  double ahead = 1, behind = end;
  for (int i = 0; i < bisections; ++i) {
    const double middle = std::sqrt(ahead * behind);
    (lead(middle) >= 0 ? ahead : behind) = middle;
  }
  return std::sqrt(ahead * behind);
}

/// A plan of another kind: with it the choice would differ in more than sizes.
const Listed* rival(const Recommendation& recommendation) {
  const Plan& best = recommendation.plans.front().found.plan;
  for (std::size_t i = 1; i < recommendation.plans.size(); ++i) {
    const Plan& plan = recommendation.plans[i].found.plan;
    const bool other_kind =
        plan.zero.stage != best.zero.stage || plan.expert_parallel != best.expert_parallel ||
        plan.moe.implementation != best.moe.implementation || plan.recompute.every != best.recompute.every ||
        plan.offload.optimizer != best.offload.optimizer || plan.fsdp.replicate != best.fsdp.replicate;
    if (other_kind) return &recommendation.plans[i];
  }
  return nullptr;
}

bool routes_evenly(const Scenario& scenario) {
  const auto& layers = scenario.model.layers;
  const bool experts = !scenario.plan.moe.num_experts.empty() ||
                       std::any_of(layers.begin(), layers.end(), [](const LayerSpec& l) { return l.moe.has_value(); });
  return experts && scenario.plan.routing.kind == Routing::Kind::balanced;
}

std::string imbalance_in_words(const Scenario& best) {
  double fits_up_to = 1;
  for (const double factor : {1.25, 1.5, 2.0, 3.0}) {
    Scenario scenario = best;
    scenario.plan.routing.kind = Routing::Kind::skew;
    scenario.plan.routing.max_over_mean = factor;
    if (!is_legal({scenario.plan, &scenario.model, &scenario.cluster})) break;
    if (fit_of(scenario).verdict == Verdict::oom)
      return fmt::format(
          "Routing: taken to be balanced; fits while the fullest expert gets up to {} times the mean, not with {}.",
          fits_up_to, factor);
    fits_up_to = factor;
  }
  if (fits_up_to == 1) return {};
  return fmt::format("Routing: taken to be balanced; still fits with {} times the mean on the fullest expert.",
                     fits_up_to);
}

}  // namespace

std::vector<std::string> deciding_assumptions(const Recommendation& recommendation, const Calibration& calibration,
                                              double budget_s) {
  const Clock::time_point start = Clock::now();
  const auto time_is_up = [&] { return std::chrono::duration<double>(Clock::now() - start).count() > budget_s; };
  std::vector<std::string> sentences;
  const Scenario& best = recommendation.best->scenario;
  if (routes_evenly(best) && best.plan.expert_parallel > 1) {
    if (std::string text = imbalance_in_words(best); !text.empty()) sentences.push_back(std::move(text));
  }
  const Listed* other = rival(recommendation);
  if (other == nullptr || time_is_up()) return sentences;
  const Race race(best, other->found.plan, calibration);
  if (race.lead_with_host(1) < 0) return sentences;  // it is ahead, but fits only tightly
  const std::string difference = difference_in_words(best.plan, other->found.plan);
  const auto look = [&](const char* what, const std::function<double(double)>& lead) {
    for (const double end : {1 / most, most}) {
      if (time_is_up()) return;
      if (const auto factor = break_even(lead, end)) {
        sentences.push_back(fmt::format("{} {:.2g} times what is assumed would make another plan as fast: {}.", what,
                                        *factor, difference));
        return;
      }
    }
    sentences.push_back(fmt::format("{} from a quarter to four times what is assumed does not change the order ({}).",
                                    what, difference));
  };
  look("Link bandwidth", [&](double factor) { return race.lead_with_links(factor); });
  look("Host cost per launch", [&](double factor) { return race.lead_with_host(factor); });
  return sentences;
}

}  // namespace plimsoll
