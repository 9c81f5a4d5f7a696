// Which process of a job am I, and where is the first one?  From the launcher's environment:
//   torchrun   RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT (torchrun itself listens there: the next port is used)
//   Open MPI   OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK; MASTER_ADDR if the ranks are on several nodes
//   Slurm      SLURM_PROCID SLURM_NTASKS SLURM_LOCALID; rank 0 is on the first node of SLURM_STEP_NODELIST
// PLIMSOLL_PORT chooses another port.
#pragma once

#include <functional>
#include <string>

namespace plimsoll {

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

}  // namespace plimsoll
