// Searches the smallest world (planner/cli/need_search.hpp).
//
// For a number of GPUs n the plans to try go from the mildest to the most drastic: no offload before offload, no
// recomputation before full, a low stage before a high one, little expert parallelism before much.  Whether any of them fits
// grows with n (states and gathered layers are spread over more ranks), so n is found by doubling, then by bisection: up to a
// node over any number, beyond it over whole nodes, whose number experts divide more often; then, one by one, over how many GPUs
// of the last node it takes.  Where expert parallelism or replicas are stated, over their multiples.  Where a ds_config.json
// states the global batch, it stays by accumulation: n is one of its divisors, each tried from the least on, since experts
// divide now one, now none of them.  At last the mildest plan for that n, and for all of that node.
#include "planner/cli/need_search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "planner/base/check.hpp"
#include "planner/cli/terminal.hpp"

namespace plimsoll {
namespace {

using Sets = std::vector<std::string>;

/// What may be varied, as --set takes it; from mild to drastic.
struct Choices {
  Sets always;  ///< of every plan
  std::vector<Sets> offload, recompute, stage;
  std::int64_t experts = 0;  ///< of a layer; 0: expert parallelism stays as it is
};

Choices choices_of(const Inputs& inputs) {
  const Plan& plan = *inputs.report().plan;
  Choices choices;
  choices.offload = choices.recompute = choices.stage = {{}};
  if (!plan.states("/recompute")) choices.recompute = {{"recompute=none"}, {"recompute=full"}};
  if (plan.engine == Engine::deepspeed) {
    if (!plan.states("/zero/stage"))
      choices.stage = {{"zero.stage=0"}, {"zero.stage=1"}, {"zero.stage=2"}, {"zero.stage=3"}};
    const bool stated = plan.states("/offload/optimizer") || plan.states("/offload/parameters");
    if (!stated) choices.offload = {{}, {"offload.optimizer=cpu"}, {"offload.optimizer=cpu", "offload.parameters=cpu"}};
  }
  if (place_of(plan, "/micro_batch").pointer == "/train_batch_size") choices.always = {"micro_batch=1"};
  const bool exchanges = plan.engine == Engine::deepspeed || plan.engine == Engine::plimsoll;
  if (exchanges && !plan.states("/expert_parallel")) {
    for (const LayerSpec& layer : inputs.model()->layers)
      if (layer.moe) choices.experts = std::max(choices.experts, layer.moe->experts);
  }
  return choices;
}

class NeedSearch {
 public:
  explicit NeedSearch(const Inputs& inputs)
      : inputs_(inputs),
        choices_(choices_of(inputs)),
        node_(grown(*inputs.cluster(), most_gpus).devices_per_node),
        worlds_(legal_worlds()) {}

  bool offload_is_open() const { return choices_.offload.size() > 1; }
  const std::vector<int>& worlds() const { return worlds_; }

  std::optional<Need> smallest(bool offload) {
    const std::optional<int> fewest = fewest_gpus(offload, Verdict::tight);
    if (!fewest) return std::nullopt;
    Need need{mildest(*fewest, offload), std::nullopt, std::nullopt};
    if (need.fewest.ledger.verdict == Verdict::tight)
      if (const auto roomy = fewest_gpus(offload, Verdict::fits)) need.with_room = mildest(*roomy, offload);
    const auto whole = static_cast<int>(round_up(*fewest, node_));
    if (whole > node_ && whole > *fewest && runs(whole, offload, Verdict::tight))
      need.in_whole_nodes = mildest(whole, offload);
    return need;
  }

  /// Whether any plan fits the largest; nothing: not known by the deadline.
  std::optional<bool> runs_on_most(std::chrono::steady_clock::time_point deadline) {
    for (const Sets& sets : drastic_first(worlds_.back(), true)) {
      if (std::chrono::steady_clock::now() >= deadline) return std::nullopt;
      if (verdict_of(sets) != Verdict::oom) return true;
    }
    return false;
  }

 private:
  std::vector<int> legal_worlds() const {
    const Plan& plan = *inputs_.report().plan;
    const std::int64_t batch = inputs_.report().global_batch;
    const int unit = std::lcm(plan.states("/expert_parallel") ? plan.expert_parallel : 1, plan.fsdp.replicate);
    std::vector<int> worlds;
    for (int gpus = unit; gpus <= most_gpus; gpus += unit) {
      const bool divides = batch > 0 ? batch % gpus == 0 : unit > 1 || gpus <= node_ || gpus % node_ == 0;
      if (divides && inputs_.varied({fmt::format("world_size={}", gpus)})) worlds.push_back(gpus);
    }
    if (worlds.empty()) worlds.push_back(plan.world_size);  // beyond what is tried, but legal
    return worlds;
  }

  /// @param worst what counts as running
  std::optional<int> fewest_gpus(bool offload, Verdict worst) {
    const auto runs_on = [&](int gpus) { return runs(gpus, offload, worst); };
    if (inputs_.report().global_batch > 0) {
      const auto found = std::find_if(worlds_.begin(), worlds_.end(), runs_on);
      return found == worlds_.end() ? std::nullopt : std::optional(*found);
    }
    const std::size_t last = worlds_.size() - 1;
    std::size_t not_on = 0, on = 0;  // `not_on` is the number of worlds, from the least, that do not run it
    while (!runs_on(worlds_[on])) {
      if (on == last) return std::nullopt;
      not_on = on + 1;
      on = std::min(std::max<std::size_t>(1, 2 * on), last);
    }
    while (on > not_on) {
      const std::size_t middle = not_on + (on - not_on) / 2;
      runs_on(worlds_[middle]) ? on = middle : not_on = middle + 1;
    }
    int fewest = std::max(1, worlds_[on] - node_ + 1);
    while (worlds_[on] > node_ && fewest < worlds_[on] && !runs_on(fewest)) ++fewest;
    return worlds_[on] > node_ ? fewest : worlds_[on];
  }

  /// Degrees of expert parallelism worth trying on n GPUs: none, within a node, all.
  std::vector<Sets> expert_choices(int gpus) const {
    if (choices_.experts == 0) return {{}};
    std::vector<Sets> sets = {{"expert_parallel=1"}};
    std::int64_t last = 1;
    for (const std::int64_t most : {std::gcd<std::int64_t>(gpus, node_), std::int64_t{gpus}}) {
      const std::int64_t ep = std::gcd(choices_.experts, most);
      if (ep > last) sets.push_back({fmt::format("expert_parallel={}", ep)});
      last = std::max(last, ep);
    }
    return sets;
  }

  std::vector<Sets> plans(int gpus, bool offload, const std::vector<Sets>& recomputes) const {
    std::vector<Sets> all;
    for (const Sets& offloads : choices_.offload) {
      for (const Sets& recompute : recomputes) {
        for (const Sets& stage : choices_.stage) {
          // One GPU shards nothing: there a stage only serves what it offloads.
          if (gpus == 1 && offloads.empty() && &stage != &choices_.stage.front()) continue;
          for (const Sets& experts : expert_choices(gpus)) {
            Sets sets = {fmt::format("world_size={}", gpus)};
            for (const Sets& part : {choices_.always, offloads, recompute, stage, experts})
              sets.insert(sets.end(), part.begin(), part.end());
            all.push_back(std::move(sets));
          }
        }
      }
      if (!offload) break;
    }
    return all;
  }

  /// The most drastic ones come first, as they decide most often, and all of them recompute as much as they may: that never
  /// takes more memory.
  std::vector<Sets> drastic_first(int gpus, bool offload) const {
    std::vector<Sets> all = plans(gpus, offload, {choices_.recompute.back()});
    std::reverse(all.begin(), all.end());
    return all;
  }

  /// True if any plan is no worse than that.
  bool runs(int gpus, bool offload, Verdict worst) {
    const std::vector<Sets> all = drastic_first(gpus, offload);
    return std::any_of(all.begin(), all.end(), [&](const Sets& sets) { return verdict_of(sets) <= worst; });
  }

  /// @param gpus on which some plan runs
  Evaluation mildest(int gpus, bool offload) {
    const std::vector<Sets> all = plans(gpus, offload, choices_.recompute);
    const auto is = [&](Verdict wanted) {
      return [this, wanted](const Sets& sets) { return verdict_of(sets) == wanted; };
    };
    auto found = std::find_if(all.begin(), all.end(), is(Verdict::fits));
    if (found == all.end()) found = std::find_if(all.begin(), all.end(), is(Verdict::tight));
    CHECK(found != all.end(), "a number of GPUs on which no plan runs");
    return evaluate(*inputs_.varied(*found));
  }

  Verdict verdict_of(const Sets& sets) {
    const std::string name = fmt::format("{}", fmt::join(sets, " "));
    const auto known = verdicts_.find(name);
    if (known != verdicts_.end()) return known->second;
    progress_.step(fmt::format("{} {}", inputs_.cluster()->device.name, name));
    const auto scenario = inputs_.varied(sets);
    const Verdict verdict = scenario ? fit_of(*scenario).verdict : Verdict::oom;
    verdicts_[name] = verdict;
    return verdict;
  }

  const Inputs& inputs_;
  Choices choices_;
  int node_;                 ///< GPUs of one, where it takes several
  std::vector<int> worlds_;  ///< what is tried, ascending
  std::map<std::string, Verdict> verdicts_;
  Progress progress_{"need"};
};

}  // namespace

NeedAnswer find_need(const Inputs& inputs) {
  NeedSearch search(inputs);
  NeedAnswer answer;
  answer.device = inputs.cluster()->device.name;
  answer.global_batch = inputs.report().global_batch;
  if (answer.global_batch > 0) answer.divisors = search.worlds();
  answer.smallest = search.smallest(true);
  const bool offloads =
      answer.smallest && answer.smallest->fewest.scenario.plan.offload.optimizer != OffloadDevice::none;
  if (offloads && search.offload_is_open()) answer.without_offload = search.smallest(false);
  return answer;
}

MostGpus runs_on_most_gpus(const Inputs& inputs, std::chrono::steady_clock::time_point deadline) {
  NeedSearch search(inputs);
  return {search.worlds().back(), search.runs_on_most(deadline)};
}

}  // namespace plimsoll
