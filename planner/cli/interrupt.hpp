// What does Ctrl-C do to a long search?  The first one asks it to stop, so that it answers with what it has; a second one ends
// the program.
#pragma once

#include <csignal>
#include <stop_token>
#include <thread>

namespace plimsoll {

/// While one lives, SIGINT requests stop.  Made before other threads, which inherit that the signal is blocked.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  std::stop_token stop() const { return requested_.get_token(); }

 private:
  std::stop_source requested_;
  sigset_t before_{};
  std::jthread watch_;
};

}  // namespace plimsoll
