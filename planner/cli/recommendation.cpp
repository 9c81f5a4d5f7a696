// Searches, and looks around the answer (planner/cli/recommendation.hpp).
#include "planner/cli/recommendation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>

#include "planner/base/format.hpp"
#include "planner/cli/in_words.hpp"
#include "planner/cli/plan_evaluator.hpp"
#include "planner/cli/terminal.hpp"
#include "planner/cli/what_helps.hpp"
#include "planner/spec/legality.hpp"

namespace plimsoll {
namespace {

using Clock = std::chrono::steady_clock;

/// Of the time given; the rest goes to looking around the answer.
constexpr double share_of_the_search = 0.7;
/// Where none fits, for whether more GPUs would do.
constexpr double share_of_what_helps = 0.3;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

Listed listed(const Found& found) { return {found, 1 / found.seconds_per_token, {}}; }

/// What the plan loses against the first, and by what it differs.
std::string loss_in_words(const Listed& first, const Listed& other) {
  const double change = other.found.seconds_per_token / first.found.seconds_per_token - 1;
  const Evaluated& evaluated = other.found.evaluated;
  std::string text = change < 0 ? fmt::format("{:.1f} % less time a token", -100 * change)
                                : fmt::format("{:.1f} % more time a token", 100 * change);
  if (evaluated.verdict == Verdict::tight)
    text += fmt::format(", and fits only tightly (margin {} GiB)", gibibytes(evaluated.margin));
  text += fmt::format("; bound by {}", evaluated.bound_by);
  const std::string difference = difference_in_words(first.found.plan, other.found.plan);
  return difference.empty() ? text : text + ": " + difference;
}

/// The recommended plan, then the best plan of each other choice, fastest first.
std::vector<Listed> list_plans(const SearchResult& search, int top) {
  std::vector<Listed> plans{listed(*search.best)};
  std::set<Choice> shown{search.best->choice};
  for (const Found& found : search.judged) {
    if (static_cast<int>(plans.size()) >= top) break;
    if (found.choice.world != search.best->choice.world || !shown.insert(found.choice).second) continue;
    plans.push_back(listed(found));
  }
  for (std::size_t i = 1; i < plans.size(); ++i) plans[i].why = loss_in_words(plans.front(), plans[i]);
  return plans;
}

/// What would happen with one thing changed.
class Neighbours {
 public:
  Neighbours(const Scenario& best, Clock::time_point deadline) : best_(best), deadline_(deadline) {}

  /// A sentence if the changed plan does not fit.
  template <class Change>
  void lacks(const std::string& changed, Change change) {
    Scenario scenario = best_;
    change(scenario.plan);
    if (Clock::now() >= deadline_ || !is_legal({scenario.plan, &scenario.model, &scenario.cluster})) return;
    const Ledger ledger = evaluate(std::move(scenario), {}, false).ledger;
    if (ledger.verdict != Verdict::oom) return;
    const char* where = ledger.breaks_on_host ? "the node's memory" : "the GPU";
    sentences_.push_back(ledger.breaks_on_host || ledger.margin.count >= 0
                             ? fmt::format("{} does not fit {} ({}).", changed, where, ledger.breaks_phase)
                             : fmt::format("{} does not fit: it lacks {} ({}).", changed,
                                           format(Bytes(0) - ledger.margin), ledger.breaks_phase));
  }
  std::vector<std::string> take() { return std::move(sentences_); }

 private:
  const Scenario& best_;
  Clock::time_point deadline_;
  std::vector<std::string> sentences_;
};

std::vector<std::string> why_not_more(const Scenario& best, Clock::time_point deadline) {
  Neighbours neighbours(best, deadline);
  const Plan& plan = best.plan;
  neighbours.lacks(fmt::format("Micro-batch {}", plan.micro_batch + 1), [](Plan& p) { ++p.micro_batch; });
  if (plan.recompute.every > 0)
    neighbours.lacks("The same plan without recomputation", [](Plan& p) { p.recompute.every = 0; });
  if (plan.offload.optimizer != OffloadDevice::none) {
    neighbours.lacks("The same plan with the optimizer on the GPU", [](Plan& p) {
      p.offload.optimizer = p.offload.parameters = OffloadDevice::none;
      p.optimizer.implementation = OptimizerImplementation::fused;
    });
  }
  return neighbours.take();
}

std::string proof_in_words(const SearchResult& search) {
  const std::string plans = format_count(search.considered), evaluated = format_count(search.evaluated);
  if (search.proven)
    return fmt::format("No other of {} plans, {} of them evaluated, takes less time a token and fits.", plans,
                       evaluated);
  constexpr double worth_a_word = 0.0005;
  std::string estimated;
  if (search.estimated > 0)
    estimated = fmt::format(
        "{} estimated from models of fewer layers, {}; ", format_count(search.estimated),
        search.expected_gap < worth_a_word
            ? "none of which is expected to take less time"
            : fmt::format("one of which is expected to take {:.1f} % less time", 100 * search.expected_gap));
  return fmt::format(
      "The best found among {} plans in {:.1f} s: {}{} evaluated. Not proven to be the best: by its bounds another "
      "could take up to {:.1f} % less time.",
      plans, search.seconds, estimated, evaluated, 100 * search.gap);
}

std::vector<std::string> reasons(const Recommendation& recommendation, Clock::time_point deadline) {
  const SearchResult& search = recommendation.search;
  std::vector<std::string> why{proof_in_words(search)};
  const Evaluated& evaluated = search.best->evaluated;
  why.push_back(fmt::format("Its step is bound by {}; the GPU is idle for {:.0f} % of it.", evaluated.bound_by,
                            100 * recommendation.step->idle_share));
  for (std::string& sentence : why_not_more(recommendation.best->scenario, deadline))
    why.push_back(std::move(sentence));
  for (const std::string& note : notes_on(recommendation.best->scenario)) why.push_back(note);
  const auto faster = std::find_if(search.judged.begin(), search.judged.end(), [&](const Found& found) {
    return found.evaluated.verdict == Verdict::tight && found.seconds_per_token < search.best->seconds_per_token;
  });
  if (faster != search.judged.end() && evaluated.verdict == Verdict::fits)
    why.push_back(fmt::format("A plan that fits only tightly would take {:.1f} % less time ({}); --tight accepts it.",
                              100 * (1 - faster->seconds_per_token / search.best->seconds_per_token),
                              difference_in_words(search.best->plan, faster->plan)));
  if (recommendation.global_batch == 0 && !recommendation.asked.plan.states("/gradient_accumulation"))
    why.push_back(
        fmt::format("Accumulation was free, up to 8 micro-batches: {} tokens a step; --global-batch fixes it.",
                    format_count(static_cast<std::int64_t>(tokens_of_step(search.best->plan)))));
  return why;
}

}  // namespace

double tokens_of_step(const Plan& plan) {
  return static_cast<double>(plan.tokens()) * static_cast<double>(plan.gradient_accumulation) * plan.world_size;
}

std::string difference_in_words(const Plan& a, const Plan& b) {
  std::vector<std::string> parts;
  const auto compare = [&](const char* what, const auto& mine, const auto& theirs) {
    if (mine != theirs) parts.push_back(fmt::format("{} {} instead of {}", what, theirs, mine));
  };
  const auto recompute = [](int every) {
    return every == 0 ? std::string("none") : every == 1 ? "full" : fmt::format("every {} layers", every);
  };
  const auto experts = [](const Plan& plan) {
    return fmt::format("{}{}", name_of(plan.moe.implementation), plan.moe.leaf ? " as leaves" : "");
  };
  const auto place = [](OffloadDevice device) {
    return device == OffloadDevice::none ? std::string("gpu") : std::string(name_of(device));
  };
  compare("GPUs", a.world_size, b.world_size);
  if (a.engine == Engine::deepspeed) compare("ZeRO stage", a.zero.stage, b.zero.stage);
  compare("ep", a.expert_parallel, b.expert_parallel);
  compare("experts", experts(a), experts(b));
  compare("micro-batch", a.micro_batch, b.micro_batch);
  compare("accumulation", a.gradient_accumulation, b.gradient_accumulation);
  compare("recomputation", recompute(a.recompute.every), recompute(b.recompute.every));
  compare("optimizer on", place(a.offload.optimizer), place(b.offload.optimizer));
  compare("parameters on", place(a.offload.parameters), place(b.offload.parameters));
  if (a.engine == Engine::deepspeed && b.zero.stage > 0) {
    compare("reduce_bucket_size", a.zero.reduce_bucket_size, b.zero.reduce_bucket_size);
    if (b.zero.stage == 3 && a.zero.stage == 3)
      compare("max_live_parameters", a.zero.stage3_max_live_parameters, b.zero.stage3_max_live_parameters);
  }
  if (a.engine == Engine::fsdp2) {
    compare("reshard_after_forward", a.fsdp.reshard_after_forward, b.fsdp.reshard_after_forward);
    compare("replicas", a.fsdp.replicate, b.fsdp.replicate);
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string progress_in_words(const SearchProgress& progress) {
  return fmt::format("{} plans estimated, {} evaluated, best {} tokens/s, {} choices open",
                     format_count(progress.estimated), format_count(progress.evaluated),
                     format_count(static_cast<std::int64_t>(progress.best_tokens_per_s)), progress.open);
}

Scenario asked_of(const Inputs& inputs) {
  Scenario scenario = inputs.scenario();
  Places& places = scenario.plan.places;
  const auto open_if_from = [&](const char* key, const char* pointer) {
    const auto place = places.find(key);
    if (place != places.end() && place->second.pointer == pointer) places.erase(place);
  };
  if (inputs.options().ds.empty()) return scenario;
  open_if_from("/micro_batch", "/train_batch_size");
  open_if_from("/gradient_accumulation", "/train_batch_size");
  if (inputs.report().global_batch > 0) open_if_from("/gradient_accumulation", "/gradient_accumulation_steps");
  const std::vector<KeyVerdict>& keys = inputs.report().keys;
  const bool decides = std::any_of(keys.begin(), keys.end(), [](const KeyVerdict& key) {
    return key.pointer == "/optimizer/params/torch_adam" || key.pointer == "/zero_force_ds_cpu_optimizer";
  });
  for (const char* pointer : {"", "/optimizer/type"})
    if (!decides) open_if_from("/optimizer/implementation", pointer);
  return scenario;
}

Recommendation recommend(const Inputs& inputs, const Calibration& calibration, const RecommendOptions& options) {
  const Clock::time_point start = Clock::now();
  Recommendation result;
  result.asked = asked_of(inputs);
  result.global_batch = options.global_batch > 0 ? options.global_batch : inputs.report().global_batch;
  result.time_source = fmt::format("simulated with the prices of {}", calibration.name);
  SearchOptions search = search_options(calibration);
  search.budget_s = share_of_the_search * options.budget_s;
  search.accept_tight = options.accept_tight;
  search.runners_up = options.top - 1;
  search.stop = options.stop;
  Progress progress("recommend");
  search.progress = [&](const SearchProgress& now) {
    if (options.progress) return options.progress(now);
    progress.step(progress_in_words(now));
  };
  const Space space(result.asked, result.global_batch);
  result.search = search_plans(space, plan_evaluator(calibration), search);
  const SearchResult& found = result.search;
  if (!found.best && !found.nearest) return result;
  Scenario scenario = result.asked;
  scenario.plan = found.best ? found.best->plan : found.nearest->plan;
  result.best = evaluate(std::move(scenario));
  result.step = simulated(result.best->program, result.asked.cluster, calibration);
  if (!found.best) {
    const auto most = std::chrono::milliseconds(std::lround(1e3 * share_of_what_helps * options.budget_s));
    result.what_helps = what_would_help(inputs, *result.best, found.proven, Clock::now() + most);
    return result;
  }
  result.plans = list_plans(found, options.top);
  for (const Found& plan : found.front) {
    result.front.push_back(listed(plan));
    result.front.back().why = difference_in_words(found.best->plan, plan.plan);
  }
  // Looking around has what is left of the time, and a little more where that is nothing.
  const auto left_for = [&](double at_least, double at_most, double kept) {
    if (options.stop.stop_requested()) return 0.0;
    return std::clamp(options.budget_s - seconds_since(start) - kept, at_least, at_most);
  };
  result.why = reasons(result, Clock::now() + std::chrono::milliseconds(std::lround(1e3 * left_for(0.2, 0.7, 0.4))));
  result.plans.front().why = fmt::format("{}", fmt::join(result.why, " "));
  result.deciding = deciding_assumptions(result, calibration, left_for(0.2, options.budget_s + 1, 0));
  return result;
}

}  // namespace plimsoll
