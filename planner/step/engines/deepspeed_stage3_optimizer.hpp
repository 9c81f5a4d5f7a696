// What does the optimizer hold and do at ZeRO stage 3?
//
//   flat parameters   the rank's parts of all trainable parameters in one buffer of P elements (with CPU parameters one
//                     pinned host buffer per optimizer group)
//   sub-group         parameters of one communicator in order; a new one starts once the parts reach sub_group_size elements
//   initialization    parts -> one pageable host buffer -> (cached memory given back) -> flat parameters; a master per
//                     sub-group; a zero gradient of the largest sub-group, dropped; the bucket; the gradient partition;
//                     then each parameter is gathered once to install its hook
//   step              norm: a float64 copy of each part, one after the other; per sub-group of s elements: its gradients
//                     flattened (if there is more than one), cast to fp32, the flat one dies, update, parameters cast back
// With a CPU optimizer masters and moments are pageable host memory, fp32 gradients and the gradient partition pinned.
// With states on NVMe they pass through pinned buffers instead (read in source, not measured).
// Source: DeepSpeed 0.19.8, measured phases of device and host memory.
#pragma once

#include <vector>

#include "planner/step/engines/deepspeed_groups.hpp"
#include "planner/step/engines/deepspeed_stage3_gradients.hpp"
#include "planner/step/engines/torch_job.hpp"

namespace plimsoll::zero3 {

struct SubGroup {
  std::vector<int> parameters;
  Communicator communicator;
  std::int64_t elements = 0;  ///< of this rank's parts
  bool on_host = false;       ///< master, moments and fp32 gradient
  Tensor master;
  Tensor kept_gradient;  ///< in fp32, if it outlives the step (offload)
  std::vector<AdamState> states;
};

/// The sub-groups of `groups`: cut where the communicator changes and where the parts reach `sub_group_size`.
std::vector<SubGroup> sub_groups_of(const std::vector<OptimizerGroup>& groups, ShardedParameters& parameters,
                                    std::int64_t sub_group_size);

class Optimizer {
 public:
  Optimizer(ShardedParameters& parameters, Gradients& gradients, const Scenario& scenario, int rank,
            std::deque<Parameter>& all);

  /// Everything that the engine makes of the sharded parameters, to the hooks' gathers.
  void initialize();
  /// The update; parameters are sharded when it begins, persistent ones whole when it ends.
  void step();
  const std::vector<SubGroup>& sub_groups() const { return sub_groups_; }

 private:
  void flatten_on_device();
  void flatten_on_host();
  void make_swap_buffers();
  void make_master(SubGroup& group, Tensor& converted);
  void move(const Tensor& from, const Tensor& to, std::int64_t elements);
  void zero_gradients();
  void keep_gradients_on_device();
  void make_gradient_partition();
  void check_overflow();
  void all_reduce_scalar(const Tensor& scalar, GroupId group, std::int64_t ranks, const char* role);
  void norm(const SubGroup& group);
  void update_on_device(SubGroup& group);
  void update_on_host(SubGroup& group);
  Tensor fp32_gradient(const SubGroup& group);
  DType master_dtype() const;
  /// Of what is trained: the model's type, or that of its adapters.
  DType trained_dtype() const { return groups_.front().parameters.front()->dtype; }
  const Plan& plan() const { return scenario_.plan; }

  ShardedParameters& parameters_;
  Gradients& gradients_;
  const Scenario& scenario_;
  Trace& trace_;
  std::vector<OptimizerGroup> groups_;
  std::vector<SubGroup> sub_groups_;
  std::int64_t elements_ = 0;  ///< P, of trainable parameters
  Tensor gradient_partition_;  ///< s_a P
  std::vector<Tensor> swap_buffers_;
  std::vector<Tensor> scalars_;  ///< norms of sub-groups during a step
};

}  // namespace plimsoll::zero3
