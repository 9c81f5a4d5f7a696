// Which names hold something most like a word?  For choices by a part of a name; the one name that a slip of the pen meant:
// nearest() in planner/base/format.hpp.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace plimsoll {

/// So many of the candidates, first those a part of which is nearest to the word by edit distance.
std::vector<std::string> nearest_parts(std::string_view word, const std::vector<std::string>& candidates,
                                       std::size_t count);

}  // namespace plimsoll
