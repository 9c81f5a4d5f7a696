// Weights and moments by name (runtime/core/state.hpp).
#include "runtime/core/state.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>

#include "planner/base/check.hpp"
#include "planner/base/in_parallel.hpp"
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
void in_ranges(std::int64_t begin, std::int64_t end, const std::function<void(std::int64_t, std::int64_t)>& work) {
  constexpr std::int64_t worth_a_thread = 1 << 20;
  const std::int64_t ranges = std::clamp<std::int64_t>((end - begin) / worth_a_thread, 1, std::max(1, all_cores() / 2));
  in_parallel(static_cast<int>(ranges), static_cast<std::size_t>(ranges), [&](std::size_t index) {
    const auto i = static_cast<std::int64_t>(index);
    work(begin + (end - begin) * i / ranges, begin + (end - begin) * (i + 1) / ranges);
  });
}

/// Elements that pass through one piece of host memory at a time.
constexpr std::int64_t chunk = 1 << 23;

/// Writes values as the operand's type, through `staging` of a chunk in fp32.
void write_numbers(Execution& execution, const Operand& to, std::span<const float> values, std::byte* staging) {
  const std::int64_t size = size_of(to.dtype);
  for (std::size_t done = 0; done < values.size(); done += static_cast<std::size_t>(chunk)) {
    const auto part = values.subspan(done, std::min(static_cast<std::size_t>(chunk), values.size() - done));
    in_ranges(0, static_cast<std::int64_t>(part.size()), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i)
        set_number(staging, to.dtype, i, static_cast<double>(part[static_cast<std::size_t>(i)]));
    });
    Operand there = to;
    there.data += static_cast<std::int64_t>(done) * size;
    there.numel -= static_cast<std::int64_t>(done);
    execution.backend().write(there, {staging, part.size() * static_cast<std::size_t>(size)});
  }
}

/// Room for `most` values, at most a chunk.
std::shared_ptr<std::byte> staging_of(Execution& execution, std::int64_t most) {
  return execution.backend().allocate_host(Bytes(std::min(chunk, most) * std::int64_t{sizeof(float)}));
}

/// SplitMix64's finaliser.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// Two independent deviates of a standard normal distribution, by Box and Muller, from 64 random bits: 40 for the radius, which
/// reaches 7.4 deviations, 24 for the angle.
std::pair<float, float> normal_pair(std::uint64_t bits) {
  const float uniform = (static_cast<float>(bits >> 24) + 1) * 0x1p-40F;  // (0, 1]
  const float radius = std::sqrt(-2 * std::log(uniform));
  const float angle = static_cast<float>(bits & 0xffffffU) * (0x1p-24F * 2 * std::numbers::pi_v<float>);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

/// Elements [first, first + values.size()) of the flat vector of a group; padding is 0.
void fill_flat(const RankProgram& rank, const FlatGroup& group, std::int64_t first, std::span<float> values,
               const ValuesOf& values_of) {
  std::fill(values.begin(), values.end(), 0.0F);
  const std::int64_t end = first + static_cast<std::int64_t>(values.size());
  for (std::uint32_t i = 0; i < group.slot_count; ++i) {
    const ParameterSlot& slot = rank.slots[group.first_slot + i];
    const std::int64_t from = std::max(slot.offset, first), to = std::min(slot.offset + slot.numel, end);
    if (from >= to) continue;
    in_ranges(from, to, [&](std::int64_t begin, std::int64_t stop) {
      values_of(slot, slot.first + begin - slot.offset,
                values.subspan(static_cast<std::size_t>(begin - first), static_cast<std::size_t>(stop - begin)));
    });
  }
}

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
  write_numbers(execution, execution.operand(buffer, first_of(group, buffer)), values,
                staging_of(execution, group.shard_numel).get());
}

void initial_values(std::uint64_t seed, std::string_view name, double deviation, std::int64_t first,
                    std::span<float> values) {
  if (deviation == 0) return std::fill(values.begin(), values.end(), 1.0F);
  std::uint64_t key = seed ^ 0xcbf29ce484222325ULL;
  for (const char letter : name) key = (key ^ static_cast<unsigned char>(letter)) * 0x100000001b3ULL;
  key = mix(key);
  // Elements 2 p and 2 p + 1 are the pair of counter p.
  const auto scale = static_cast<float>(deviation);
  std::size_t at = 0;
  for (auto index = static_cast<std::uint64_t>(first); at < values.size(); index = (index / 2 + 1) * 2) {
    const auto [even, odd] = normal_pair(mix(key + 0x9e3779b97f4a7c15ULL * (index / 2 + 1)));
    if (index % 2 == 0) values[at++] = scale * even;
    if (at < values.size()) values[at++] = scale * odd;
  }
}

void set_weights(Execution& execution, const ValuesOf& values_of) {
  const RankProgram& rank = execution.rank();
  std::int64_t most = 0;
  for (const FlatGroup& group : rank.flat_groups) most = std::max(most, group.weights_numel);
  const std::shared_ptr<std::byte> staging = staging_of(execution, most);
  std::vector<float> memory(static_cast<std::size_t>(std::min(chunk, most)));
  for (const FlatGroup& group : rank.flat_groups) {
    // All that the weights' buffer holds; the shard is a part of it.
    const std::int64_t end = group.weights_first + group.weights_numel;
    for (std::int64_t first = group.weights_first; first < end; first += chunk) {
      const auto values = std::span(memory).first(static_cast<std::size_t>(std::min(chunk, end - first)));
      fill_flat(rank, group, first, values, values_of);
      write_numbers(execution, execution.operand(group.weights, first - group.weights_first), values, staging.get());
      const std::int64_t from = std::max(first, group.shard_first);
      const std::int64_t to =
          std::min(first + static_cast<std::int64_t>(values.size()), group.shard_first + group.shard_numel);
      if (group.master == FlatGroup::none || from >= to) continue;
      write_numbers(execution, execution.operand(group.master, from - group.shard_first),
                    values.subspan(static_cast<std::size_t>(from - first), static_cast<std::size_t>(to - from)),
                    staging.get());
    }
    for (const BufferId buffer : {group.first_moment, group.second_moment, group.gradient})
      execution.backend().clear(execution.operand(buffer));
  }
}

void initialise(Execution& execution, std::uint64_t seed) {
  set_weights(execution, [seed](const ParameterSlot& slot, std::int64_t first, std::span<float> values) {
    initial_values(seed, slot.name, slot.initial_std, first, values);
  });
}

}  // namespace plimsoll
