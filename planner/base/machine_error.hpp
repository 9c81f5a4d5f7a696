// What if the machine fails: a file that is missing or unreadable, no device, a full disk?  Then an exception travels to
// main, which prints it and exits with 3.  Wrong input is no machine error but a Diagnostic (planner/base/diagnostic.hpp).
#pragma once

#include <stdexcept>

namespace plimsoll {

class MachineError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace plimsoll
