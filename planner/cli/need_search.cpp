// Searches the smallest world (planner/cli/need_search.hpp).
//
// For a number of GPUs n the plans to try go from the mildest to the most drastic: no offload before offload, no
// recomputation before full, a low stage before a high one, little expert parallelism before much.  Whether any of them fits
// grows with n (states and gathered layers are spread over more ranks), so n is found by doubling, then by bisection: up to a
// node over any number, beyond it over whole nodes, whose number experts divide more often; then, one by one, over how many GPUs
// of the last node it takes.  At last the mildest plan for that n, and for all of that node.
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
  const bool exchanges = plan.engine == Engine::deepspeed || plan.engine == Engine::plimsoll;
  if (exchanges && !plan.states("/expert_parallel")) {
    for (const LayerSpec& layer : inputs.model()->layers)
      if (layer.moe) choices.experts = std::max(choices.experts, layer.moe->experts);
  }
  return choices;
}

class NeedSearch {
 public:
  explicit NeedSearch(const Inputs& inputs) : inputs_(inputs), choices_(choices_of(inputs)) {}

  bool offload_is_open() const { return choices_.offload.size() > 1; }

  std::optional<Need> smallest(bool offload) {
    const int node = std::max(1, node_size());
    const auto gpus_at = [&](int index) { return index < node ? index + 1 : (index - node + 2) * node; };
    int low = -1, high = 0;
    while (gpus_at(high) <= most_gpus && !runs(gpus_at(high), offload)) {
      low = high;
      high = high == 0 ? 1 : 2 * high;
    }
    if (gpus_at(high) > most_gpus) return std::nullopt;
    while (high - low > 1) {
      const int middle = low + (high - low) / 2;
      (runs(gpus_at(middle), offload) ? high : low) = middle;
    }
    const int whole = gpus_at(high);
    int fewest = std::max(1, whole - node + 1);
    while (whole > node && fewest < whole && !runs(fewest, offload)) ++fewest;
    if (whole <= node || fewest == whole) return Need{mildest(whole, offload), std::nullopt};
    return Need{mildest(fewest, offload), mildest(whole, offload)};
  }

  /// Whether any plan fits the largest; nothing: not known by the deadline.
  std::optional<bool> runs_on_most(std::chrono::steady_clock::time_point deadline) {
    for (const Sets& sets : drastic_first(most_gpus, true)) {
      if (std::chrono::steady_clock::now() >= deadline) return std::nullopt;
      if (verdict_of(sets) != Verdict::oom) return true;
    }
    return false;
  }

 private:
  int node_size() const {
    const ClusterSpec& cluster = *inputs_.cluster();
    return grown(cluster, most_gpus).devices_per_node;
  }

  /// Degrees of expert parallelism worth trying on n GPUs: none, within a node, all.
  std::vector<Sets> expert_choices(int gpus) const {
    if (choices_.experts == 0) return {{}};
    std::vector<Sets> sets = {{"expert_parallel=1"}};
    std::int64_t last = 1;
    for (const std::int64_t most : {std::gcd<std::int64_t>(gpus, node_size()), std::int64_t{gpus}}) {
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
            for (const Sets& part : {offloads, recompute, stage, experts})
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

  /// True if any plan fits.
  bool runs(int gpus, bool offload) {
    const std::vector<Sets> all = drastic_first(gpus, offload);
    return std::any_of(all.begin(), all.end(), [&](const Sets& sets) { return verdict_of(sets) != Verdict::oom; });
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
    return evaluate(*inputs_.with(*found));
  }

  Verdict verdict_of(const Sets& sets) {
    const std::string name = fmt::format("{}", fmt::join(sets, " "));
    const auto known = verdicts_.find(name);
    if (known != verdicts_.end()) return known->second;
    progress_.step(fmt::format("{} {}", inputs_.cluster()->device.name, name));
    const auto scenario = inputs_.with(sets);
    const Verdict verdict = scenario ? fit_of(*scenario).verdict : Verdict::oom;
    verdicts_[name] = verdict;
    return verdict;
  }

  const Inputs& inputs_;
  Choices choices_;
  std::map<std::string, Verdict> verdicts_;
  Progress progress_{"need"};
};

}  // namespace

NeedAnswer find_need(const Inputs& inputs) {
  NeedSearch search(inputs);
  NeedAnswer answer;
  answer.device = inputs.cluster()->device.name;
  answer.smallest = search.smallest(true);
  const bool offloads =
      answer.smallest && answer.smallest->fewest.scenario.plan.offload.optimizer != OffloadDevice::none;
  if (offloads && search.offload_is_open()) answer.without_offload = search.smallest(false);
  return answer;
}

std::optional<bool> runs_on_most_gpus(const Inputs& inputs, std::chrono::steady_clock::time_point deadline) {
  return NeedSearch(inputs).runs_on_most(deadline);
}

}  // namespace plimsoll
