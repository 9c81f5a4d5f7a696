// How do live bytes go over the events of an allocator's record?  For pictures of a measured step beside the predicted one.
#pragma once

#include <vector>

#include "planner/cli/allocator_record.hpp"

namespace plimsoll {

/// Live bytes before the first event and after each: one more than there are events.
std::vector<Bytes> live_curve(const AllocatorRecord& record);

}  // namespace plimsoll
