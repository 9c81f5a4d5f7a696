// How does a long computation end whose answer nobody wants any more?  Whoever starts it says so for its thread; what takes long
// asks now and then and throws, so that nothing in between has to pass a question or an empty answer on.
#pragma once

#include <stop_token>
#include <utility>

namespace plimsoll {

/// Thrown by give_up_if_unwanted(), to whoever has made the Wanted.
struct GivenUp {};

/// While it lives, this thread's computations are wanted until stop is requested.  Without one they always are.
class Wanted {
 public:
  explicit Wanted(const std::stop_token& unwanted) : outer_(std::exchange(current, &unwanted)) {}
  ~Wanted() { current = outer_; }
  Wanted(const Wanted&) = delete;
  Wanted& operator=(const Wanted&) = delete;

 private:
  friend void give_up_if_unwanted();
  static constinit inline thread_local const std::stop_token* current = nullptr;
  const std::stop_token* outer_;
};

/// Costs about a nanosecond.
inline void give_up_if_unwanted() {
  if (Wanted::current != nullptr && Wanted::current->stop_requested()) throw GivenUp{};
}

}  // namespace plimsoll
