// What crosses which link?  Bytes on the wire in one optimizer step of one rank, by collective, group, phase and tier.
#pragma once

#include <string>
#include <vector>

#include "planner/spec/topology.hpp"
#include "planner/step/program.hpp"

namespace plimsoll {

struct VolumeRow {
  std::string kind;   ///< "all_gather", ..., "host_to_device", "device_to_host"
  std::string group;  ///< "dp", "edp", "ep", ...; "host" for copies
  std::string phase;  ///< "forward", "backward", "step"
  Tier tier = Tier::nvlink;
  DType dtype = DType::bf16;
  std::int64_t calls = 0;
  Bytes full_size;  ///< of one call, as nccl-tests defines it
  Bytes wire;       ///< sent by one GPU over that tier, all calls together
};

struct CommVolume {
  std::vector<VolumeRow> rows;  ///< one per size where sizes differ, in order of first appearance
  Bytes per_gpu;                ///< sum of the rows' wire bytes
};

/// Volumes of the steady step.  Collectives of groups of one send nothing and are left out.
CommVolume account_volume(const StepProgram& program, const RankProgram& rank, const ClusterSpec& cluster);

}  // namespace plimsoll
