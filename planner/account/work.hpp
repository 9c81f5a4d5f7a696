// How much is computed and moved, and what is the least time it can take?  FLOPs, HBM traffic and launches of a steady step,
// and the program's lower bound: the busiest lane, each kernel at the device's peak rates.
#pragma once

#include "planner/spec/cluster.hpp"
#include "planner/step/program.hpp"

namespace plimsoll {

struct Work {
  Flops matrix_flops;    ///< GEMMs and attention, recomputation included
  Bytes memory_traffic;  ///< read and written by kernels
  std::int64_t launches = 0;
  Seconds compute_bound;        ///< sum over kernels of max(flops / peak, bytes / bandwidth)
  Seconds communication_bound;  ///< sum over collectives at link bandwidth
  /// The largest of the lanes' sums and of the groups': a communicator's kernels run one after another.
  Seconds lower_bound;
};

Work account_work(const StepProgram& program, const RankProgram& rank, const ClusterSpec& cluster);

}  // namespace plimsoll
