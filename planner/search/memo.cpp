// Lower bounds from what was evaluated (planner/search/memo.hpp).
#include "planner/search/memo.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace plimsoll {
namespace {

constexpr const char* without_recomputation = "slower than the same plan with less recomputation, which fits";
constexpr const char* without_offload = "slower than the same plan with less offload, which fits";
constexpr const char* with_larger_micro_batch =
    "slower a token than the same plan with a larger micro-batch, which fits";
constexpr const char* with_accumulation = "slower a token than the same plan with more accumulation, which fits";

/// By so much the sum of rounded tensors may stray from an affine function of the micro-batch: 512 bytes each, and the few
/// that only a micro-batch of several sequences has.
constexpr Bytes stray{std::int64_t{4} << 20};

constexpr int recompute_steps[] = {0, 2, 1};

/// Less recomputation first.
int share_recomputed(int every) { return every == 0 ? 0 : 1000 / every; }

}  // namespace

Memo::Memo(const Space& space, const SearchOptions& options)
    : space_(space),
      options_(options),
      beyond_(space.choices().size()),
      outlines_(space.choices().size()),
      sizes_(space.choices().size()) {
  list_layers();
  list_relatives();
  list_savers();
}

void Memo::list_layers() {
  std::map<Choice, std::uint32_t> known;
  for (Choice choice : space_.choices()) {
    choice.world = choice.expert_parallel;  // the least that it can be
    choice.small_buckets = choice.small_gathers = false;
    layers_as_.push_back(known.try_emplace(choice, static_cast<std::uint32_t>(known.size())).first->second);
  }
  floors_.assign(known.size(), std::vector<Floor>(space_.micro_batches().size()));
}

/// Small buckets and gathers keep no more tensors.  (Recomputation may, in small models.)
void Memo::list_savers() {
  const auto& choices = space_.choices();
  savers_.resize(choices.size());
  outlined_as_.resize(choices.size());
  for (std::uint32_t i = 0; i < choices.size(); ++i) {
    const Choice& choice = choices[i];
    // Short models take the least buckets and gathers, whatever the plan has.
    Choice plain = choice;
    plain.small_buckets = plain.small_gathers = false;
    outlined_as_[i] = space_.index_of(plain).value_or(i);
    for (const bool buckets : {false, true}) {
      for (const bool gathers : {false, true}) {
        if (buckets < choice.small_buckets || gathers < choice.small_gathers) continue;
        Choice saver = choice;
        saver.small_buckets = buckets;
        saver.small_gathers = gathers;
        if (const auto index = space_.index_of(saver)) savers_[i].push_back(*index);
      }
    }
    if (std::find(savers_[i].begin(), savers_[i].end(), i) == savers_[i].end()) savers_[i].push_back(i);
  }
}

Bytes Memo::extrapolated(const Sizes& sizes, std::int64_t micro_batch) {
  auto after = sizes.upper_bound(micro_batch);
  if (after == sizes.begin()) return Bytes(0);
  const auto last = std::prev(after);
  if (last == sizes.begin() || last->first == micro_batch) return last->second;
  const auto before = std::prev(last);
  const double slope = static_cast<double>((last->second - before->second - stray).count) /
                       static_cast<double>(last->first - before->first);
  const double grown = slope * static_cast<double>(micro_batch - last->first);
  return std::max(last->second, last->second + Bytes(static_cast<std::int64_t>(grown)) - stray);
}

Bytes Memo::least_memory(const CandidateId& id) const {
  const std::int64_t micro = space_.micro_batches()[id.micro];
  Bytes least;
  // At stage 3 other parameters may be gathered in the loss where micro-batches follow one another.
  const bool accumulating_takes_more = space_.choices()[id.choice].stage != 3;
  for (const std::uint32_t saver : savers_[id.choice]) {
    if (id.accumulation == 1 || accumulating_takes_more) least = std::max(least, extrapolated(sizes_[saver][0], micro));
    if (id.accumulation >= 3) least = std::max(least, extrapolated(sizes_[saver][1], micro));
  }
  const std::array<Sizes, 2>& outlined = outlines_[outlined_as_[id.choice]].live;
  return std::max({least, known_up_to(outlined[0], micro), known_up_to(outlined[kind_of(id)], micro)});
}

/// Of the largest micro-batch that is known and not above: larger ones take no less.
Bytes Memo::known_up_to(const Sizes& sizes, std::int64_t micro_batch) {
  const auto after = sizes.upper_bound(micro_batch);
  return after == sizes.begin() ? Bytes(0) : std::prev(after)->second;
}

Bytes Memo::least_to_fit(const CandidateId& id) const {
  const std::array<Sizes, 2>& outlined = outlines_[outlined_as_[id.choice]].to_fit;
  const std::int64_t micro = space_.micro_batches()[id.micro];
  return std::max(known_up_to(outlined[0], micro), known_up_to(outlined[kind_of(id)], micro));
}

bool Memo::knows_outline(const CandidateId& id) const {
  return outlines_[outlined_as_[id.choice]].live[kind_of(id)].count(space_.micro_batches()[id.micro]) != 0;
}

const Memo::Estimate* Memo::estimate(const CandidateId& id) const {
  const auto found = estimates_.find(id);
  return found == estimates_.end() ? nullptr : &found->second;
}

const Memo::Estimate* Memo::plain_estimate(const CandidateId& id) const {
  return estimate({outlined_as_[id.choice], id.micro, id.accumulation});
}

void Memo::add_floor(const CandidateId& id, const Outline& outline) { take_floor(id, outline.layers); }

/// Layers of a larger micro-batch launch no fewer kernels, and none of them is shorter.
void Memo::take_floor(const CandidateId& id, const LayersTime& layers) {
  std::vector<Floor>& floors = floors_[layers_as_[id.choice]];
  floors[id.micro].is_its_own = true;
  for (std::size_t micro = id.micro; micro < floors.size(); ++micro) {
    LayersTime& least = floors[micro].layers;
    least.device_s = std::max(least.device_s, layers.device_s);
    least.host_s = std::max(least.host_s, layers.host_s);
  }
}

/// What a step takes beyond its layers grows no faster than its micro-batch: T(m) >= A F(m) + (T(M) - A F(M)) m / M for m < M,
/// F being the layers' own time of a micro-batch and A the accumulation.
void Memo::take_beyond(const CandidateId& id, double step_s) {
  const Floor& floor = floor_of(id);
  const bool is_known = floor.is_its_own && floor.layers.longest_s() > 0;
  if (!options_.larger_steps_bound || !is_known || !std::isfinite(step_s)) return;
  const double beyond = step_s - floor.layers.longest_s() * static_cast<double>(id.accumulation);
  if (beyond <= 0) return;
  const auto micro = static_cast<double>(space_.micro_batches()[id.micro]);
  beyond_[id.choice].push_back({id.micro, id.accumulation, beyond / micro});
}

void Memo::add_memory(const CandidateId& id, const Outline& outline) {
  Outlined& outlined = outlines_[outlined_as_[id.choice]];
  const std::int64_t micro = space_.micro_batches()[id.micro];
  outlined.live[kind_of(id)][micro] = outline.least_memory;
  outlined.to_fit[kind_of(id)][micro] = outline.least_to_fit;
}

void Memo::list_relatives() {
  const auto& choices = space_.choices();
  relatives_.resize(choices.size());
  if (!options_.relatives_bound) return;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const Choice& choice = choices[i];
    for (const int every : recompute_steps) {
      if (share_recomputed(every) > share_recomputed(choice.recompute_every)) continue;
      // A small model is updated by the host in less time than a GPU takes to launch it: under FSDP2 bounds alone tell.
      const int least_offload = space_.asked().plan.engine == Engine::fsdp2 ? static_cast<int>(choice.offload) : 0;
      for (int offload = least_offload; offload <= static_cast<int>(choice.offload); ++offload) {
        Choice relative = choice;
        relative.recompute_every = every;
        relative.offload = static_cast<Offloading>(offload);
        if (relative == choice) continue;
        if (const auto index = space_.index_of(relative))
          relatives_[i].push_back(
              {*index, relative.offload == choice.offload ? without_recomputation : without_offload});
      }
    }
  }
}

void Memo::add(const CandidateId& id, const Evaluated& evaluated) {
  evaluated_.insert_or_assign(id, evaluated);
  const std::int64_t micro = space_.micro_batches()[id.micro];
  if (evaluated.least_memory.count > 0) sizes_[id.choice][0][micro] = evaluated.least_memory;
  if (evaluated.least_accumulating.count > 0) sizes_[id.choice][1][micro] = evaluated.least_accumulating;
  if (evaluated.layers.longest_s() > 0) take_floor(id, evaluated.layers);
  take_beyond(id, evaluated.step_time_s);
}

const Evaluated* Memo::find(const CandidateId& id) const {
  const auto found = evaluated_.find(id);
  return found == evaluated_.end() ? nullptr : &found->second;
}

/// From the same layers and from relatives, all with the same accumulation.
Lower Memo::with_same_accumulation(const CandidateId& id, const PlanBounds& bounds) const {
  const LayersTime& layers = floor_of(id).layers;
  const std::int64_t micro = space_.micro_batches()[id.micro];
  Lower lower{std::max(bounds.step_seconds(micro, id.accumulation),
                       bounds.step_seconds(layers, id.accumulation, options_.beside_layers)),
              nullptr};
  for (const Beyond& beyond : beyond_[id.choice]) {
    if (beyond.micro <= id.micro || beyond.accumulation != id.accumulation) continue;
    const double step_s =
        layers.longest_s() * static_cast<double>(id.accumulation) + beyond.of_a_sequence_s * static_cast<double>(micro);
    if (step_s > lower.step_s) lower = {step_s, with_larger_micro_batch};
  }
  const auto take = [&](std::uint32_t choice, const char* reason) {
    const Evaluated* known = find({choice, id.micro, id.accumulation});
    if (known == nullptr || known->step_time_s < lower.step_s) return;
    const bool fits = known->judged && known->verdict == Verdict::fits;
    lower = {known->step_time_s, fits ? reason : nullptr};
  };
  take(id.choice, nullptr);
  for (const Relative& relative : relatives_[id.choice]) take(relative.choice, relative.reason);
  return lower;
}

Lower Memo::lower(const CandidateId& id, const PlanBounds& bounds) const {
  Lower lower = with_same_accumulation(id, bounds);
  if (!options_.larger_steps_bound) return lower;
  const Choice& choice = space_.choices()[id.choice];
  for (const std::int64_t more : space_.accumulations(choice, space_.micro_batches()[id.micro])) {
    if (more <= id.accumulation) continue;
    const double share = static_cast<double>(id.accumulation) / static_cast<double>(more);
    const Lower longer = with_same_accumulation({id.choice, id.micro, more}, bounds);
    const double step_s = longer.step_s * share;
    if (step_s > lower.step_s) lower = {step_s, longer.reason != nullptr ? longer.reason : with_accumulation};
  }
  return lower;
}

}  // namespace plimsoll
