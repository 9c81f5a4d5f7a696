// Less room than this share of a memory is called tight: what fragments differently from run to run.
#pragma once

namespace plimsoll {

inline constexpr double tight_share = 0.03;

}  // namespace plimsoll
