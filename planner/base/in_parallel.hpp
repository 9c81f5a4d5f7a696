// Several tasks at once, on a few threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

namespace plimsoll {

/// How many threads this machine runs at once.
inline int all_cores() { return static_cast<int>(std::max(1U, std::thread::hardware_concurrency())); }

/// Runs task(0), ..., task(count - 1) and returns when all have ended.  Throws again what the first of them to fail threw.
template <class Task>
void in_parallel(int threads, std::size_t count, const Task& task) {
  std::vector<std::exception_ptr> failures(count);
  std::atomic<std::size_t> next{0};
  const auto run = [&] {
    for (std::size_t index = next++; index < count; index = next++) {
      try {
        task(index);
      } catch (...) {
        failures[index] = std::current_exception();
      }
    }
  };
  std::vector<std::thread> others;
  const auto useful = static_cast<int>(std::min<std::size_t>(count, 1024));
  for (int i = 1; i < std::min(threads, useful); ++i) others.emplace_back(run);
  run();
  for (std::thread& thread : others) thread.join();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

}  // namespace plimsoll
