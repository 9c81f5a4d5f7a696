// The program plimsoll: the command line, and what becomes of a machine that fails.
#include <cstdio>
#include <exception>
#include <new>

#include "planner/base/machine_error.hpp"
#include "planner/cli/commands.hpp"

int main(int argc, char** argv) {
  try {
    return plimsoll::run_program(argc, argv);
  } catch (const plimsoll::MachineError& error) {
    std::fprintf(stderr, "plimsoll: %s\n", error.what());
  } catch (const std::bad_alloc&) {
    std::fputs("plimsoll: out of memory\n", stderr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "plimsoll: %s\n", error.what());
  }
  return plimsoll::exit_code::machine;
}
