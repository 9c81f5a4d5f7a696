// The program plimsoll-run: the command line, and what becomes of a machine that fails.
#include <cstdio>
#include <exception>
#include <new>

#include "runtime/cli/train.hpp"

int main(int argc, char** argv) {
  try {
    const plimsoll::ParsedOptions parsed = plimsoll::parse_run_options(argc, argv);
    return parsed.options ? plimsoll::run_job(*parsed.options) : parsed.exit_code;
  } catch (const std::bad_alloc&) {
    std::fputs("plimsoll-run: out of memory\n", stderr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "plimsoll-run: %s\n", error.what());
  }
  return 3;
}
