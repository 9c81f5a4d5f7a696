// What happens when the program itself is wrong?  CHECK(condition, message) prints where and what, and aborts.
// It is always on and never reachable from a file: wrong input is a Diagnostic (planner/base/diagnostic.hpp), a failing
// machine is an exception.
#pragma once

#include <string_view>

namespace plimsoll {

/// Prints the failed condition with its place on standard error and aborts.
[[noreturn]] void check_failed(const char* condition, const char* file, int line, std::string_view message);

}  // namespace plimsoll

#define CHECK(condition, message) \
  ((condition) ? static_cast<void>(0) : ::plimsoll::check_failed(#condition, __FILE__, __LINE__, message))
