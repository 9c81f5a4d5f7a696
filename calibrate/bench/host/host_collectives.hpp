// Collectives on the host: between threads of this process over its memory, between MPI processes, or between processes that
// another launcher started, over TCP.
#pragma once

#include <functional>
#include <memory>

#include "calibrate/bench/backend.hpp"

namespace plimsoll::calibrate {

/// All-gather, reduce-scatter, all-reduce and all-to-all of `ranks` threads, full size `bytes`, fp32.
std::unique_ptr<Work> thread_collective(const Point& point);

class HostCollectives {
 public:
  HostCollectives() = default;
  virtual ~HostCollectives() = default;
  HostCollectives(const HostCollectives&) = delete;
  HostCollectives& operator=(const HostCollectives&) = delete;
  /// A call of the collective by this process.  @throws Unsupported
  virtual std::function<void()> prepare(const Point& point) = 0;
};

/// @throws MachineError in a build without MPI
std::unique_ptr<HostCollectives> make_mpi_collectives();
/// All ranks call it.  @throws MachineError naming those that do not come
std::unique_ptr<HostCollectives> make_tcp_collectives(Ranks& ranks);

}  // namespace plimsoll::calibrate
