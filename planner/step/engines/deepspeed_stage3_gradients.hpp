// What becomes of a finished gradient at ZeRO stage 3?
//
//   ready     the gradient is copied into the permanent bucket (B elements) on the reduce stream, if elements + numel <= B,
//             and dies; a larger one is reduced from its own memory
//   flush     before a gradient that would not fit, before one of another communicator, and at the end of backward: an
//             interleaved, padded copy of sum(n p) elements, in id order, is reduce-scattered and dies (none for a single
//             parameter that n divides); without reduce_scatter the bucket itself is all-reduced
//   partition the rank's part goes into the gradient partition (set by the first micro-batch, added to by the later ones)
//   leaf      a leaf module's gradients wait for each other: they are reduced together when its backward ends
// With a CPU optimizer the partition lives in pinned host memory; at the boundary its part visits the device again for the
// norm (float64 copies of at most 250,000,000 elements) and is sent to the CPU's fp32 gradient.
// Source: DeepSpeed 0.19.8, checked against allocator traces.
#pragma once

#include <vector>

#include "planner/step/engines/deepspeed_stage3_coordinator.hpp"

namespace plimsoll::zero3 {

class Gradients {
 public:
  Gradients(ShardedParameters& parameters, const Plan& plan);

  /// Takes the permanent memory: the bucket.
  void allocate_bucket();
  /// Where a parameter's part of the gradient goes, and, with a CPU optimizer, the fp32 gradient behind it.
  struct Target {
    Tensor partition;  ///< s_a bytes per element
    Tensor kept_gradient;
  };
  void set_target(int parameter, Target target) { targets_[static_cast<std::size_t>(parameter)] = std::move(target); }
  const Target& target(int parameter) const { return targets_[static_cast<std::size_t>(parameter)]; }

  void begin_micro_batch(bool first, bool boundary);
  /// A finished gradient of a parameter outside of leaf modules.
  void ready(Parameter& parameter, Tensor gradient);
  /// The backward of a leaf module has ended: reduces the gradients of its parameters; those without one count as zeros.
  void leaf_ready(const std::vector<int>& parameters);
  /// The end of backward: the last flush, and the host waits for the reduce stream.
  void finish();
  /// The step has read the norms that a CPU optimizer's gradients left on the device.
  void drop_norms() { norms_.clear(); }

 private:
  struct Entry {
    int parameter = 0;
    Tensor own;  ///< the gradient itself, if it is not in the bucket
  };

  void add_to_bucket(int parameter, Tensor gradient);
  void flush();
  Tensor cast(const Tensor& from, DType dtype, const char* name, const char* op);
  void interleave(const std::vector<Tensor>& casts, const Tensor& flat);
  std::vector<Tensor> reduce_scatter(const Communicator& communicator);
  std::vector<Tensor> all_reduce_bucket(const Communicator& communicator);
  void partition(const ShardedParameter& sharded, const Tensor& reduced);
  void partition_on_host(const ShardedParameter& sharded, const Tensor& reduced);
  void collective(CollectiveKind kind, const Communicator& communicator, const Tensor& buffer);
  void wait_for_old_events();

  ShardedParameters& parameters_;
  Trace& trace_;
  const Plan& plan_;
  Tensor bucket_;
  std::vector<Target> targets_;  // by parameter
  std::vector<Entry> entries_;
  std::vector<Tensor> norms_;
  std::int64_t elements_ = 0;
  bool first_micro_batch_ = true;
  bool boundary_ = true;
  std::vector<OpId> events_;  // the last op on the reduce lane at each flush
};

}  // namespace plimsoll::zero3
