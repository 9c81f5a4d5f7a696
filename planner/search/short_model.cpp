// Cuts a model short and scales what its programs hold (planner/search/short_model.hpp).
#include "planner/search/short_model.hpp"

#include <algorithm>
#include <string_view>

namespace plimsoll {
namespace {

constexpr std::size_t longest_period = 8, longest_beginning = 8;

/// Rounding of tensors that ranks share: of a whole program, and of each layer.
constexpr Bytes stray{std::int64_t{4} << 20};
constexpr Bytes stray_of_a_layer{std::int64_t{64} << 10};

struct Period {
  std::size_t beginning = 0, length = 1;
};

/// The one that leaves the shortest model.
std::optional<Period> find_period(const std::vector<LayerSpec>& layers, const Recompute& recompute) {
  const auto recomputed = [&](std::size_t i) {
    return recompute.every > 0 && i % static_cast<std::size_t>(recompute.every) == 0;
  };
  std::optional<Period> best;
  for (std::size_t length = 1; length <= longest_period; ++length) {
    std::size_t beginning = layers.size() > length ? layers.size() - length : 0;
    while (beginning > 0 && layers[beginning - 1] == layers[beginning - 1 + length] &&
           recomputed(beginning - 1) == recomputed(beginning - 1 + length))
      --beginning;
    if (beginning > longest_beginning) continue;
    if (!best || beginning + length < best->beginning + best->length) best = Period{beginning, length};
  }
  return best;
}

/// Smaller ones keep no more tensors.
void take_least_buckets(ZeroOptions& zero) {
  constexpr std::int64_t least = 1'000'000;
  zero.reduce_bucket_size = std::min(zero.reduce_bucket_size, least);
  zero.allgather_bucket_size = std::min(zero.allgather_bucket_size, least);
  zero.stage3_max_live_parameters = zero.stage3_max_reuse_distance = zero.stage3_prefetch_bucket_size = 0;
}

Scenario with_layers(const Scenario& scenario, std::size_t count) {
  Scenario result{scenario.model, scenario.cluster, scenario.plan};
  result.model.layers.resize(count);
  std::erase_if(result.model.parameters, [&](const ParameterDecl& p) { return p.layer >= static_cast<int>(count); });
  take_least_buckets(result.plan.zero);
  return result;
}

bool is_construction(std::string_view phase) { return phase == "model_built" || phase == "initialized"; }

/// Runs layer by layer in a step that others are like: not the optimizer, which works in groups of limited size.
bool is_steady_by_layer(std::string_view phase) {
  return phase == "steady_accumulation" || phase == "steady_forward" || phase == "steady_backward";
}

/// The highest sum of live tensors in each phase; tensors are rounded up only where the allocator is replayed.
std::vector<Bytes> peaks_of(const RankProgram& program) {
  std::vector<Bytes> peaks(program.phases.size());
  Bytes live;
  std::size_t phase = 0;
  for (OpId id = 0; id < program.steady_end; ++id) {
    const Action& action = program.ops[id].action;
    const auto* alloc = std::get_if<Alloc>(&action);
    const auto* free = std::get_if<Free>(&action);
    if (alloc == nullptr && free == nullptr) continue;
    const BufferDecl& buffer = program.buffers[alloc != nullptr ? alloc->buffer : free->buffer];
    if (buffer.pool == Lane::host) continue;
    if (alloc == nullptr) {
      live -= buffer.size;
      continue;
    }
    live += buffer.size;
    while (phase < peaks.size() && id >= program.phases[phase].end) ++phase;
    if (phase == peaks.size()) break;
    peaks[phase] = std::max(peaks[phase], live);
  }
  return peaks;
}

/// Stages 1 and 2 flatten all parameters of a kind at once; stage 3 works in groups of limited size, which few layers do not fill.
bool flattens_whole(const Plan& plan) { return plan.engine == Engine::deepspeed && plan.zero.stage < 3; }

}  // namespace

std::optional<Shortened> shorten(const Scenario& scenario, std::int64_t apart) {
  const std::vector<LayerSpec>& layers = scenario.model.layers;
  if (scenario.plan.routing.kind == Routing::Kind::histogram || scenario.plan.moe.num_experts.size() > 1)
    return std::nullopt;
  const auto period = find_period(layers, scenario.plan.recompute);
  if (!period) return std::nullopt;
  // FSDP2 gathers one group ahead and reduces one behind: only from the fifth layer on do further ones hold no more of that.
  const std::size_t settled = scenario.plan.engine == Engine::fsdp2 ? 5 : 2;
  const std::size_t count = period->beginning + std::max(settled, period->length);
  if (layers.size() < count + 2 * period->length) return std::nullopt;
  const auto left_out = static_cast<std::int64_t>((layers.size() - count) / period->length);
  apart = std::min(apart, left_out);
  Shortened result{with_layers(scenario, count),
                   with_layers(scenario, count + period->length * static_cast<std::size_t>(apart)),
                   apart,
                   left_out,
                   {},
                   flattens_whole(scenario.plan)};
  result.stands_for.assign(count, 1);
  for (std::size_t i = count; i < layers.size(); ++i)
    ++result.stands_for[count - period->length + (i - count) % period->length];
  return result;
}

PeakLive least_live(const RankProgram& few, const RankProgram& more, std::int64_t left_out, bool constructs_whole) {
  const std::vector<Bytes> small = peaks_of(few), large = peaks_of(more);
  PeakLive least;
  for (std::size_t i = 0; i < few.phases.size(); ++i) {
    const bool constructs = is_construction(few.phases[i].name);
    if (constructs ? !constructs_whole : !is_steady_by_layer(few.phases[i].name)) continue;
    const Bytes grown = (large[i] - small[i] - stray_of_a_layer) * left_out;
    Bytes& part = constructs ? least.in_construction : least.in_steps;
    part = std::max(part, small[i] + std::max(Bytes(0), grown) - stray);
  }
  return least;
}

PeakLive expected_live(const RankProgram& few, const RankProgram& more, double times) {
  const std::vector<Bytes> small = peaks_of(few), large = peaks_of(more);
  PeakLive expected;
  for (std::size_t i = 0; i < few.phases.size(); ++i) {
    Bytes& part = is_construction(few.phases[i].name) ? expected.in_construction : expected.in_steps;
    const double grown = static_cast<double>((large[i] - small[i]).count) * times;
    part = std::max(part, small[i] + Bytes(static_cast<std::int64_t>(grown)));
  }
  return expected;
}

}  // namespace plimsoll
