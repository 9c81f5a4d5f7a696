// Sums over a record's events (planner/cli/record_curve.hpp).
#include "planner/cli/record_curve.hpp"

namespace plimsoll {

std::vector<Bytes> live_curve(const AllocatorRecord& record) {
  std::vector<Bytes> curve{record.live_before};
  curve.reserve(record.events.size() + 1);
  for (const AllocatorEvent& event : record.events)
    curve.push_back(curve.back() + Bytes(event.is_alloc ? event.bytes : -event.bytes));
  return curve;
}

}  // namespace plimsoll
