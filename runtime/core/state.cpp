// Weights and moments by name (runtime/core/state.hpp).
#include "runtime/core/state.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>
#include <thread>

#include "planner/base/check.hpp"
#include "runtime/core/number.hpp"

namespace plimsoll {

namespace {

BufferId buffer_of(const FlatGroup& group, StateKind kind) {
  switch (kind) {
    case StateKind::weights: return group.master != FlatGroup::none ? group.master : group.weights;
    case StateKind::first_moment: return group.first_moment;
    case StateKind::second_moment: return group.second_moment;
    case StateKind::gradient: return group.gradient;
  }
  return group.weights;
}

/// Of the shard's first element in that buffer.
std::int64_t first_of(const FlatGroup& group, BufferId buffer) {
  return buffer == group.weights ? group.shard_first - group.weights_first : 0;
}

/// Billions of values take minutes on one core: ranges of [begin, end), each by a thread; few values by this one.
void in_parallel(std::int64_t begin, std::int64_t end, const std::function<void(std::int64_t, std::int64_t)>& work) {
  constexpr std::int64_t worth_a_thread = 1 << 20;
  const std::int64_t threads =
      std::min<std::int64_t>(std::max(1U, std::thread::hardware_concurrency() / 2), (end - begin) / worth_a_thread);
  if (threads <= 1) return work(begin, end);
  std::vector<std::thread> running;
  for (std::int64_t i = 0; i < threads; ++i)
    running.emplace_back(work, begin + (end - begin) * i / threads, begin + (end - begin) * (i + 1) / threads);
  for (std::thread& thread : running) thread.join();
}

void write_numbers(Execution& execution, const Operand& to, std::span<const float> values) {
  std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(size_of(to.dtype)));
  in_parallel(0, static_cast<std::int64_t>(values.size()), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i)
      set_number(bytes.data(), to.dtype, i, static_cast<double>(values[static_cast<std::size_t>(i)]));
  });
  execution.backend().write(to, bytes);
}

/// SplitMix64's finaliser.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// Uniform in (0, 1].
double uniform(std::uint64_t bits) { return (static_cast<double>(bits >> 11) + 1) * 0x1p-53; }

}  // namespace

void for_each_piece(const RankProgram& rank, const std::function<void(const ShardPiece&)>& visit) {
  for (const FlatGroup& group : rank.flat_groups) {
    for (std::uint32_t i = 0; i < group.slot_count; ++i) {
      const ParameterSlot& slot = rank.slots[group.first_slot + i];
      const std::int64_t begin = std::max(slot.offset, group.shard_first);
      const std::int64_t end = std::min(slot.offset + slot.numel, group.shard_first + group.shard_numel);
      if (begin < end) visit({group, slot, begin - group.shard_first, slot.first + begin - slot.offset, end - begin});
    }
  }
}

std::vector<float> read_shard(Execution& execution, const FlatGroup& group, StateKind kind) {
  const BufferId buffer = buffer_of(group, kind);
  const Operand from = execution.operand(buffer, first_of(group, buffer));
  std::vector<std::byte> bytes(static_cast<std::size_t>(group.shard_numel * size_of(from.dtype)));
  execution.backend().read(from, bytes);
  std::vector<float> values(static_cast<std::size_t>(group.shard_numel));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(number_at(bytes.data(), from.dtype, static_cast<std::int64_t>(i)));
  return values;
}

void write_shard(Execution& execution, const FlatGroup& group, StateKind kind, std::span<const float> values) {
  CHECK(static_cast<std::int64_t>(values.size()) == group.shard_numel, "a shard of another size");
  const BufferId buffer = buffer_of(group, kind);
  write_numbers(execution, execution.operand(buffer, first_of(group, buffer)), values);
}

float initial_value(std::uint64_t seed, std::string_view name, std::int64_t index, double deviation) {
  if (deviation == 0) return 1;
  std::uint64_t key = seed ^ 0xcbf29ce484222325ULL;
  for (const char letter : name) key = (key ^ static_cast<unsigned char>(letter)) * 0x100000001b3ULL;
  const std::uint64_t counter = mix(key) + 0x9e3779b97f4a7c15ULL * (2 * static_cast<std::uint64_t>(index) + 1);
  // Box and Muller's normal deviate.
  const double radius = std::sqrt(-2 * std::log(uniform(mix(counter))));
  const double angle = 2 * std::numbers::pi * uniform(mix(counter + 0x9e3779b97f4a7c15ULL));
  return static_cast<float>(deviation * radius * std::cos(angle));
}

void set_weights(Execution& execution, const std::function<float(const ParameterSlot&, std::int64_t)>& value) {
  const RankProgram& rank = execution.rank();
  for (const FlatGroup& group : rank.flat_groups) {
    // All that the weights' buffer holds; the shard is a part of it.
    std::vector<float> flat(static_cast<std::size_t>(group.weights_numel));
    for (std::uint32_t i = 0; i < group.slot_count; ++i) {
      const ParameterSlot& slot = rank.slots[group.first_slot + i];
      const std::int64_t begin = std::max(slot.offset, group.weights_first);
      const std::int64_t end = std::min(slot.offset + slot.numel, group.weights_first + group.weights_numel);
      in_parallel(begin, end, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t at = first; at < last; ++at)
          flat[static_cast<std::size_t>(at - group.weights_first)] = value(slot, slot.first + at - slot.offset);
      });
    }
    write_numbers(execution, execution.operand(group.weights), flat);
    const auto shard = std::span(flat).subspan(static_cast<std::size_t>(group.shard_first - group.weights_first),
                                               static_cast<std::size_t>(group.shard_numel));
    if (group.master != FlatGroup::none) write_shard(execution, group, StateKind::weights, shard);
    const std::vector<float> zeros(static_cast<std::size_t>(group.shard_numel));
    for (const StateKind kind : {StateKind::first_moment, StateKind::second_moment, StateKind::gradient})
      write_shard(execution, group, kind, zeros);
  }
}

void initialise(Execution& execution, std::uint64_t seed) {
  set_weights(execution, [seed](const ParameterSlot& slot, std::int64_t index) {
    return initial_value(seed, slot.name, index, slot.initial_std);
  });
}

}  // namespace plimsoll
