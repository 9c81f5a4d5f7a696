// Under which settings does PyTorch's CUDA caching allocator work?  What a replay (planner/account/allocator.hpp) is told of them.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>

#include "planner/base/quantity.hpp"

namespace plimsoll {

/// The settings of PYTORCH_ALLOC_CONF that change the bytes, and the bound on the device.
struct AllocatorRules {
  bool expandable_segments = false;
  /// Larger blocks are not split, and serve only requests of at least this size.
  Bytes max_split_size{std::numeric_limits<std::int64_t>::max()};
  /// By how much such a block may exceed the request that it serves.
  Bytes max_non_split_rounding{std::int64_t{20} << 20};
  /// Parts of the power-of-two interval [1 MiB 2^i, 1 MiB 2^(i+1)) to round up to (a power of two; 0 or 1: off); the first
  /// also for smaller requests, the last for larger ones.
  std::array<std::int64_t, 16> roundup_power2_divisions{};
  /// What may be reserved in all; nothing: no bound.
  std::optional<Bytes> capacity;
  /// Share of the capacity from which on old unused segments are given back before a new one is taken; 0: off.  As in
  /// PyTorch without effect unless a capacity is set.
  double garbage_collection_threshold = 0;
  /// What is free above the first range of addresses when the pool is empty: the context's own memory ends within a range of
  /// 32 MiB.  The first segment lay 14 MiB above the range's beginning in eight processes on one GPU, 12 MiB in six with a
  /// communicator, where the 2 MiB more change nothing.
  Bytes address_gap{std::int64_t{18} << 20};
};

}  // namespace plimsoll
