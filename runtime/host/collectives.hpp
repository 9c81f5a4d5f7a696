// The collectives of the program over a transport, and how many bytes each put on the wire.  n members, full size S:
//   all_gather, reduce_scatter  every member sends its part, or every part of another's, directly: S (n - 1) / n
//   all_reduce                  the one, then the other: 2 S (n - 1) / n
//   all_to_all                  all parts but its own
// Sums run over the members in order, in fp64, and are rounded once.
#pragma once

#include <map>
#include <string>

#include "planner/spec/collective.hpp"
#include "runtime/core/backend.hpp"
#include "runtime/host/transport.hpp"

namespace plimsoll {

/// Bytes that this rank sent, by kind and group.
using SentBytes = std::map<std::pair<CollectiveKind, GroupId>, std::int64_t>;

/// Runs a collective on host memory.  Operands as planner/step/engines/plimsoll.cpp states them: the local part, the full
/// buffer, or one buffer in place; all_to_all with counts of rows that leave and arrive, [members, local experts] each.
void run_collective(const Operation& operation, const Collective& collective, const Members& members,
                    Transport& transport, std::int64_t& sent_bytes);

}  // namespace plimsoll
