// The choices and candidates of a search (planner/search/space.hpp).
#include "planner/search/space.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "planner/base/format.hpp"
#include "planner/spec/complete_plan.hpp"
#include "planner/spec/legality.hpp"
#include "planner/spec/limits.hpp"

namespace plimsoll {
namespace {

/// Tokens of a micro-batch beyond which no larger one is generated: two million, some hundred times what a GPU holds.
constexpr std::int64_t most_tokens = std::int64_t{1} << 21;

/// Those up to `most`.
std::vector<int> divisors(std::int64_t number, std::int64_t most) {
  std::vector<int> all;
  for (std::int64_t d = 1; d <= std::min(number, most); ++d)
    if (number % d == 0) all.push_back(static_cast<int>(d));
  return all;
}

bool is_deepspeed(const Plan& plan) { return plan.engine == Engine::deepspeed; }

bool leaves_offload_open(const Plan& plan) {
  return !plan.states("/offload/optimizer") && !plan.states("/offload/parameters");
}

/// How far a choice is from what one would try first.
int effort(const Choice& choice) {
  return static_cast<int>(choice.offload) + (choice.small_buckets ? 1 : 0) + (choice.small_gathers ? 1 : 0);
}

}  // namespace

Space::Space(const Scenario& asked, std::int64_t global_batch) : asked_(asked), global_batch_(global_batch) {
  if (!asked.plan.moe.num_experts.empty()) {
    expert_counts_ = asked.plan.moe.num_experts;
  } else {
    for (const LayerSpec& layer : asked.model.layers)
      if (layer.moe) expert_counts_.push_back(layer.moe->experts);
  }
  list_micro_batches();
  const Plan& plan = asked.plan;
  std::vector<int> stages{plan.zero.stage};
  if (is_deepspeed(plan) && !plan.states("/zero/stage")) stages = {0, 1, 2, 3};
  std::vector<Choice> all;
  for (const int world : worlds())
    for (const int stage : stages)
      for (const Choice& choice : choices_of(world, stage)) all.push_back(choice);
  std::stable_sort(all.begin(), all.end(), [](const Choice& a, const Choice& b) { return effort(a) < effort(b); });
  for (const Choice& choice : all) add(choice);
}

/// The whole cluster, a half, a quarter, ...; under a global batch every number of GPUs that divides it.
std::vector<int> Space::worlds() const {
  if (asked_.plan.states("/world_size")) return {asked_.plan.world_size};
  if (global_batch_ > 0) {
    std::vector<int> all = divisors(global_batch_, asked_.plan.world_size);
    std::reverse(all.begin(), all.end());
    return all;
  }
  std::vector<int> all;
  for (int world = asked_.plan.world_size; world >= 1; world /= 2) {
    all.push_back(world);
    if (world % 2 != 0) break;
  }
  return all;
}

/// 1 to 16 one by one, then eight to a doubling; under a global batch its divisors.
void Space::list_micro_batches() {
  if (asked_.plan.states("/micro_batch")) {
    micro_batches_ = {asked_.plan.micro_batch};
    return;
  }
  const std::int64_t most =
      std::clamp<std::int64_t>(most_tokens / asked_.plan.sequence, 1, global_batch_ > 0 ? global_batch_ : 1024);
  if (global_batch_ > 0) {
    for (std::int64_t micro = 1; micro <= std::min(most, global_batch_); ++micro)
      if (global_batch_ % micro == 0) micro_batches_.push_back(micro);
    return;
  }
  std::int64_t step = 1;
  for (std::int64_t micro = 1; micro <= most; micro += step) {
    micro_batches_.push_back(micro);
    if (micro >= 16 * step) step *= 2;
  }
}

std::vector<Space::ExpertChoice> Space::expert_choices(int world, int stage) const {
  const Plan& plan = asked_.plan;
  const MoeOptions& moe = plan.moe;
  if (expert_counts_.empty()) return {{moe.implementation, plan.expert_parallel, false}};
  std::vector<MoeImplementation> implementations{moe.implementation};
  if (!plan.states("/moe/implementation") && is_deepspeed(plan) && moe.num_experts.empty())
    implementations = {MoeImplementation::grouped, MoeImplementation::autoep};
  std::int64_t common = world;
  for (const std::int64_t experts : expert_counts_) common = std::gcd(common, experts);
  std::vector<ExpertChoice> all;
  for (const MoeImplementation implementation : implementations) {
    const bool whole = implementation == MoeImplementation::grouped || implementation == MoeImplementation::loop;
    std::vector<int> sizes = whole ? std::vector<int>{1} : divisors(common, common);
    if (plan.states("/expert_parallel")) sizes = {plan.expert_parallel};
    for (const int ep : sizes) {
      all.push_back({implementation, ep, false});
      if (whole && is_deepspeed(plan) && stage == 3 && !plan.states("/moe/leaf"))
        all.push_back({implementation, ep, true});
    }
  }
  return all;
}

std::vector<Choice> Space::choices_of(int world, int stage) const {
  const Plan& plan = asked_.plan;
  const bool deepspeed = is_deepspeed(plan);
  std::vector<Offloading> offloads{Offloading::none};
  if (leaves_offload_open(plan)) {
    if (deepspeed && stage > 0) offloads.push_back(Offloading::optimizer);
    if ((deepspeed && stage == 3) || plan.engine == Engine::fsdp2) offloads.push_back(Offloading::both);
  }
  const auto open = [&](bool applies) { return applies ? std::vector<bool>{false, true} : std::vector<bool>{false}; };
  const auto buckets = open(deepspeed && stage > 0 && !plan.states("/zero/reduce_bucket_size"));
  const auto gathers = open(deepspeed && stage == 3 && !plan.states("/zero/stage3_max_live_parameters"));
  std::vector<bool> reshards{plan.fsdp.reshard_after_forward};
  std::vector<int> replicas{plan.fsdp.replicate};
  if (plan.engine == Engine::fsdp2) {
    if (!plan.states("/fsdp/reshard_after_forward")) reshards = {true, false};
    const int node = asked_.cluster.devices_per_node;
    if (!plan.states("/fsdp/replicate") && world > node && world % node == 0) replicas.push_back(world / node);
  }
  std::vector<int> recomputes{plan.recompute.every};
  if (!plan.states("/recompute")) recomputes = {0, 2, 1};

  std::vector<Choice> all;
  for (const ExpertChoice& expert : expert_choices(world, stage))
    for (const int replicate : replicas)
      for (const bool reshard : reshards)
        for (const bool small_buckets : buckets)
          for (const bool small_gathers : gathers)
            for (const Offloading offload : offloads)
              for (const int every : recomputes)
                all.push_back({world, stage, expert.experts, expert.leaf, expert.expert_parallel, replicate, reshard,
                               small_buckets, small_gathers, offload, every});
  return all;
}

/// Counts candidates under the reason why they are none.
void Space::refuse(const std::string& code, const std::string& reason, std::int64_t candidates) {
  size_ += candidates;
  const auto [found, is_new] = refused_by_code_.try_emplace(code, refused_.size());
  if (is_new) refused_.push_back({reason, 0});
  refused_[found->second].count += candidates;
}

void Space::add(const Choice& choice) {
  const Plan least = plan(choice, micro_batches_.front(), 1);
  // Families that DeepSpeed takes for leaves by itself need not be told.
  if (choice.leaf) {
    Choice as_it_is = choice;
    as_it_is.leaf = false;
    if (plan(as_it_is, micro_batches_.front(), 1).moe.leaf) return;
  }
  const auto too_long = std::count_if(micro_batches_.begin(), micro_batches_.end(), [&](std::int64_t micro) {
    return passes(choice, micro) > limits::gradient_accumulation;
  });
  if (too_long > 0 && !asked_.plan.states("/gradient_accumulation"))
    refuse("search.accumulation",
           fmt::format("a step of more than {} micro-batches", format_count(limits::gradient_accumulation)), too_long);
  const std::int64_t candidates = candidates_of(choice);
  if (candidates == 0) return;
  const RuleInput input{least, &asked_.model, &asked_.cluster};
  if (plimsoll::is_legal(input)) {
    size_ += candidates;
    index_.emplace(choice, static_cast<std::uint32_t>(choices_.size()));
    choices_.push_back(choice);
    return;
  }
  const Diagnostic refusal = check_legality(input).front();
  refuse(refusal.code, fmt::format("{} refuses it: {}", name_of(least.engine), refusal.message), candidates);
}

std::int64_t Space::candidates_of(const Choice& choice) const {
  std::int64_t count = 0;
  for (const std::int64_t micro : micro_batches_)
    count += static_cast<std::int64_t>(accumulations(choice, micro).size());
  return count;
}

std::optional<std::uint32_t> Space::index_of(const Choice& choice) const {
  const auto found = index_.find(choice);
  if (found == index_.end()) return std::nullopt;
  return found->second;
}

/// Micro-batches that make up the global batch; 0: they do not divide it.
std::int64_t Space::passes(const Choice& choice, std::int64_t micro_batch) const {
  const std::int64_t in_one_pass = micro_batch * choice.world;
  return global_batch_ % in_one_pass == 0 ? global_batch_ / in_one_pass : 0;
}

std::vector<std::int64_t> Space::accumulations(const Choice& choice, std::int64_t micro_batch) const {
  const Plan& plan = asked_.plan;
  if (global_batch_ > 0) {
    const std::int64_t accumulation = passes(choice, micro_batch);
    if (plan.states("/gradient_accumulation") && accumulation != plan.gradient_accumulation) return {};
    if (accumulation == 0 || accumulation > limits::gradient_accumulation) return {};
    return {accumulation};
  }
  if (plan.states("/gradient_accumulation")) return {plan.gradient_accumulation};
  return {8, 4, 2, 1};
}

bool Space::is_legal(const Plan& plan) const { return plimsoll::is_legal({plan, &asked_.model, &asked_.cluster}); }

Plan Space::plan(const Choice& choice, std::int64_t micro_batch, std::int64_t accumulation) const {
  Plan plan = asked_.plan;
  std::vector<std::string> set;
  const auto assign = [&](const char* pointer, auto& field, auto value) {
    if (asked_.plan.states(pointer)) return;
    field = static_cast<std::remove_reference_t<decltype(field)>>(value);
    set.emplace_back(pointer);
  };
  assign("/world_size", plan.world_size, choice.world);
  assign("/micro_batch", plan.micro_batch, micro_batch);
  assign("/gradient_accumulation", plan.gradient_accumulation, accumulation);
  assign("/recompute", plan.recompute.every, choice.recompute_every);
  if (!expert_counts_.empty()) {
    assign("/expert_parallel", plan.expert_parallel, choice.expert_parallel);
    assign("/moe/implementation", plan.moe.implementation, choice.experts);
    if (choice.leaf) assign("/moe/leaf", plan.moe.leaf, true);
  }
  if (plan.engine == Engine::fsdp2) {
    assign("/fsdp/reshard_after_forward", plan.fsdp.reshard_after_forward, choice.reshard);
    assign("/fsdp/replicate", plan.fsdp.replicate, choice.replicate);
  }
  if (is_deepspeed(plan)) {
    assign("/zero/stage", plan.zero.stage, choice.stage);
    if (choice.small_buckets) assign("/zero/reduce_bucket_size", plan.zero.reduce_bucket_size, small_bucket);
    if (choice.small_gathers) {
      assign("/zero/stage3_max_live_parameters", plan.zero.stage3_max_live_parameters, small_live);
      assign("/zero/stage3_max_reuse_distance", plan.zero.stage3_max_reuse_distance, small_live);
      assign("/zero/stage3_prefetch_bucket_size", plan.zero.stage3_prefetch_bucket_size, small_prefetch);
    }
  }
  if ((is_deepspeed(plan) || plan.engine == Engine::fsdp2) && leaves_offload_open(asked_.plan)) {
    const auto place = [](bool on_host) { return on_host ? OffloadDevice::cpu : OffloadDevice::none; };
    assign("/offload/optimizer", plan.offload.optimizer, place(choice.offload != Offloading::none));
    assign("/offload/parameters", plan.offload.parameters, place(choice.offload == Offloading::both));
  }
  return complete_plan(std::move(plan), set, asked_.model);
}

}  // namespace plimsoll
