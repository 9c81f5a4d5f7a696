// The program plimsoll-calibrate: the command line, and what becomes of a machine that fails.
#include <cstdio>
#include <exception>
#include <new>

#include "calibrate/cli/commands.hpp"
#include "planner/base/machine_error.hpp"

int main(int argc, char** argv) {
  try {
    return plimsoll::calibrate::run_program(argc, argv);
  } catch (const plimsoll::MachineError& error) {
    std::fprintf(stderr, "plimsoll-calibrate: %s\n", error.what());
  } catch (const std::bad_alloc&) {
    std::fputs("plimsoll-calibrate: out of memory\n", stderr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "plimsoll-calibrate: %s\n", error.what());
  }
  return plimsoll::exit_code::machine;
}
