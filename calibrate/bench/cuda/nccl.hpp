// Collectives through NCCL, alone (calibrate/bench/backend.hpp's points of kind collective), and as launches for pairs.
#pragma once

#include <nccl.h>

#include <map>
#include <memory>
#include <string>

#include "calibrate/bench/cuda/device.hpp"
#include "calibrate/bench/ranks.hpp"

namespace plimsoll::calibrate::cuda {

class Nccl {
 public:
  /// Exchanges the unique id through `ranks`; collective.  @throws MachineError
  explicit Nccl(Ranks& ranks);
  ~Nccl();
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  /// A launch of the collective `op` of full size `bytes` (NCCL's definition) over `group`: "world", "second" (the same ranks,
  /// another communicator), or SIZExSTRIDE.  Creating a group is collective over all ranks.  @throws Unsupported
  Launch launch(const std::string& op, std::int64_t bytes, const std::string& dtype, const std::string& group);
  std::unique_ptr<Work> prepare(const Point& point);
  /// A communicator of all ranks, with its buffers allocated by a first all-reduce and exchange.
  std::shared_ptr<void> fresh_communicator();
  /// Lines up all ranks' streams: a tiny all-reduce.
  void align(cudaStream_t stream);
  Ranks& ranks() { return ranks_; }

 private:
  ncclComm_t group(const std::string& name);

  Ranks& ranks_;
  std::map<std::string, ncclComm_t> groups_;
  Buffer small_{4096};
};

std::string nccl_version();

}  // namespace plimsoll::calibrate::cuda
