// Where a failed CHECK ends: one line that names the place, then abort, so that a debugger or a core file shows the stack.
#include "planner/base/check.hpp"

#include <cstdio>
#include <cstdlib>

namespace plimsoll {

void check_failed(const char* condition, const char* file, int line, std::string_view message) {
  std::fprintf(stderr, "%s:%d: internal error: %.*s (%s)\nPlease report this; no input should lead here.\n", file, line,
               static_cast<int>(message.size()), message.data(), condition);
  std::abort();
}

}  // namespace plimsoll
