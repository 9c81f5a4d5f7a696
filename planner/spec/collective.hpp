// Which collectives does a step use, and how many bytes does each member put on the wire?
//
// S is the full size as nccl-tests defines it: the larger side of the collective (the gathered buffer of an all-gather, the
// input of a reduce-scatter, the send buffer of an all-to-all).  n members, ring algorithms, per member:
//   all_gather, reduce_scatter  S (n-1)/n     n-1 steps of one part S/n each
//   all_reduce                2 S (n-1)/n     a reduce-scatter, then an all-gather
//   all_to_all                  S (n-1)/n     all parts but one's own
//   broadcast                   S             a chain: all but its last member forward the whole buffer
// Source: nccl-tests, doc/PERFORMANCE.md (bus bandwidth factors).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "planner/base/quantity.hpp"

namespace plimsoll {

enum class CollectiveKind : std::uint8_t { all_gather, reduce_scatter, all_reduce, all_to_all, broadcast };

inline constexpr std::array collective_kinds{CollectiveKind::all_gather, CollectiveKind::reduce_scatter,
                                             CollectiveKind::all_reduce, CollectiveKind::all_to_all,
                                             CollectiveKind::broadcast};

/// As files and tables name it.
constexpr const char* name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_gather: return "all_gather";
    case CollectiveKind::reduce_scatter: return "reduce_scatter";
    case CollectiveKind::all_reduce: return "all_reduce";
    case CollectiveKind::all_to_all: return "all_to_all";
    case CollectiveKind::broadcast: return "broadcast";
  }
  return "";
}

/// The collective of that name; nothing if it is none's.
constexpr std::optional<CollectiveKind> collective_of(std::string_view name) {
  for (const CollectiveKind kind : collective_kinds)
    if (name == name_of(kind)) return kind;
  return std::nullopt;
}

/// What moves the bytes: NCCL's kernels, on multiprocessors, or copy engines, which read the memory of peers and add nothing up:
/// of a reduce-scatter of two they bring the other member's part as it is, and who reads it adds.
enum class Carrier : std::uint8_t { kernels, copy_engines };

/// Bytes one of n members sends (broadcast: each but the last of the chain), rounded down to whole bytes.  0 for n = 1.
constexpr Bytes wire_bytes(CollectiveKind kind, Bytes full_size, std::int64_t members) {
  if (members <= 1) return Bytes(0);
  const auto without_own_part = [members](std::int64_t size) { return Bytes(size - ceil_div(size, members)); };
  switch (kind) {
    case CollectiveKind::all_gather:
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::all_to_all: return without_own_part(full_size.count);
    case CollectiveKind::all_reduce: return without_own_part(2 * full_size.count);
    case CollectiveKind::broadcast: return full_size;
  }
  return Bytes(0);
}

}  // namespace plimsoll
