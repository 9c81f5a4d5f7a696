// Ranks as threads of one process: mailboxes between every pair of ranks.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "runtime/host/transport.hpp"

namespace plimsoll {

/// Mailboxes shared by the ranks of one process.
class ThreadWorld {
 public:
  ThreadWorld(int world, std::chrono::duration<double> timeout) : world_(world), timeout_(timeout) {}
  /// The end of one rank; used by one thread.  The world outlives it.
  std::unique_ptr<Transport> connect(int rank);

 private:
  friend class ThreadTransport;
  using Message = std::vector<std::byte>;
  void send(int from, int to, Message message);
  Message receive(int from, int to);
  void abandon();
  bool is_abandoned();

  const int world_;
  const std::chrono::duration<double> timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int, int>, std::deque<Message>> boxes_;
  bool abandoned_ = false;
};

}  // namespace plimsoll
