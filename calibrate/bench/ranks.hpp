// How do the processes of one measurement keep together?  Rank 0 listens, the others connect; then rank 0 decides and the
// others follow.  Who and where comes from the launcher's environment:
//   torchrun   RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT (torchrun itself listens there: the next port is used)
//   Open MPI   OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK; MASTER_ADDR if the ranks are on several nodes
//   Slurm      SLURM_PROCID SLURM_NTASKS SLURM_LOCALID; rank 0 is on the first node of SLURM_STEP_NODELIST
// A rank that dies, or that takes longer over one point than the timeout, ends all ranks, with its name.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace plimsoll::calibrate {

struct RankNames {
  int rank = 0, world = 1, local_rank = 0;
  std::string master = "127.0.0.1";
  int port = 29517;
  std::string launcher = "none";
};

/// Reads the environment through `get` (std::getenv).
/// @throws MachineError where a launcher's variables contradict each other or are no numbers
RankNames rank_names(const std::function<const char*(const char*)>& get);

/// "node[003-010,020],other" -> "node003".
std::string first_host(const std::string& slurm_node_list);

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
  const std::string& launcher() const { return names_.launcher; }

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
  void listen_for_ranks();
  void connect_to_first();
  void send(int peer, const std::string& text);
  std::string receive(int peer);

  RankNames names_;
  double timeout_s_;
  std::vector<int> sockets_;  ///< rank 0: by rank; others: one, to rank 0
  std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace plimsoll::calibrate
