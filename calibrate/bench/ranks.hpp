// How do the processes of one measurement keep together?  Rank 0 listens, the others connect; then rank 0 decides and the
// others follow.  Who and where comes from the launcher's environment (planner/base/rank_names.hpp).
// A rank that dies, or that takes longer over one point than the timeout, ends all ranks, with its name.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "planner/base/rank_names.hpp"
#include "planner/ranks/socket.hpp"

namespace plimsoll::calibrate {

class Ranks {
 public:
  /// Waits until all have connected.
  /// @throws MachineError naming the ranks that did not come within `timeout_s`
  Ranks(RankNames names, double timeout_s);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int rank() const { return names_.rank; }
  int world() const { return names_.world; }
  int local_rank() const { return names_.local_rank; }
  const RankNames& names() const { return names_; }
  double timeout_s() const { return timeout_s_; }

  /// Rank 0's text, on every rank.  @throws MachineError if a rank is gone or silent
  std::string broadcast(const std::string& text);
  /// Every rank's text by rank, on rank 0; others get nothing.
  std::vector<std::string> gather(const std::string& text);
  /// The largest of all ranks' values, on every rank.
  double maximum(double value);
  /// True if it is true on all ranks.
  bool all(bool value) { return maximum(value ? 0 : 1) == 0; }

  /// From here on this rank works on `what`; beyond the timeout `late` is called, then the process ends with exit code 3.
  void watch(const std::string& what, std::function<void()> late = {});
  void unwatch();

 private:
  class Watchdog;
  void send(int peer, const std::string& text);
  std::string receive(int peer);

  RankNames names_;
  double timeout_s_;
  std::vector<Socket> sockets_;  ///< by rank; on others than rank 0 only that to it
  std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace plimsoll::calibrate
