// A thread that waits for SIGINT (planner/cli/interrupt.hpp).
#include "planner/cli/interrupt.hpp"

#include <cstdio>
#include <ctime>

namespace plimsoll {
namespace {

sigset_t interrupts() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  return set;
}

/// How long the watch sleeps between looks at its own end.
constexpr timespec look{0, 50'000'000};

}  // namespace

Interrupt::Interrupt() {
  const sigset_t signals = interrupts();
  pthread_sigmask(SIG_BLOCK, &signals, &before_);
  watch_ = std::jthread([this, signals](const std::stop_token& end) {
    while (!end.stop_requested()) {
      if (sigtimedwait(&signals, nullptr, &look) != SIGINT) continue;
      if (requested_.request_stop()) {
        std::fputs("\ninterrupted: answering with the best so far; once more ends at once\n", stderr);
      } else {
        pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
        std::raise(SIGINT);
      }
    }
  });
}

Interrupt::~Interrupt() {
  watch_.request_stop();
  watch_.join();
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace plimsoll
