// How do DeepSpeed's stages 1 and 2 hold parameters and optimizer state?  The 16-bit parameters of a group are one flat buffer
// of A elements, cut into n partitions of a; each rank steps its partition's fp32 master and moments, casts the result into
// its part of the flat buffer, and the ranks gather the rest in place.
//
//   resident   2 A + 12 a a group, the moments from the first step on
//   building   parameters are copied into the flat buffer (on the GPU if it has room for both, else by way of the host), then
//              freed; the master is cast from a clone of the partition
// Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py and runtime/bf16_optimizer.py; measured residents and peaks.
#pragma once

#include <vector>

#include "planner/step/engines/deepspeed_replicated.hpp"

namespace plimsoll {

class FlatJob : public ReplicatedJob {
 public:
  using ReplicatedJob::ReplicatedJob;

 protected:
  struct State {
    Tensor flat;    ///< [A], 16 bits, on the GPU
    Tensor master;  ///< [a]
    std::vector<AdamState> adam;
  };

  /// The group's parameters become views of one buffer.
  Tensor flatten(OptimizerGroup& group);
  /// The partition's master on the GPU, by way of a clone.
  Tensor make_master(const OptimizerGroup& group, const Tensor& flat);
  /// Wholly free segments of the pool go back to the driver.
  void empty_cache();
  /// Adam on a group's partition, then its cast into the flat buffer.
  void update(std::size_t group, const Tensor& gradient);
  /// The ranks of each group exchange their updated partitions.
  void gather_updated();

  std::vector<Tensor> model_storages() const final;
  std::vector<Tensor> optimizer_storages() const override;

  std::vector<State> states_;  // by group

 private:
  bool has_room_for(Bytes size) const;
  Tensor flatten_on_host(OptimizerGroup& group);
};

}  // namespace plimsoll
