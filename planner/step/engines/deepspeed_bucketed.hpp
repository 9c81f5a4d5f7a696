// When do gradients enter the reduction buckets of ZeRO stages 1 and 2?
//   stage 1   they stay with autograd, summed over micro-batches; after the last backward they are reduced in order of
//             parameters, group by group; with overlap_comm as they become ready in that backward
//   stage 2   every micro-batch reduces them as they become ready
// The bucket's memory comes with the first gradient of a backward and goes when that backward's reductions are done (at
// stage 1 it stays through the later micro-batches).
// Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py; the allocator trace of a step.
#pragma once

#include "planner/step/engines/deepspeed_buckets.hpp"
#include "planner/step/engines/deepspeed_flat.hpp"

namespace plimsoll {

class BucketedJob : public FlatJob {
 public:
  BucketedJob(const Scenario& scenario, int rank, RankProgram& program);

 protected:
  bool stage2() const { return plan().zero.stage == 2; }
  bool boundary() const { return boundary_; }  ///< is it the last micro-batch of a step?
  bool first_micro_batch() const { return trace_.micro_batch == 0; }
  void hook_gradients();
  /// Micro-batches are summed in another type than gradients have: slices of this rank's partition alone, in fp32 (4 a).
  bool accumulates_fp32() const {
    return plan().gradient_dtype == DType::fp32 && plan().compute_dtype() != DType::fp32;
  }
  /// The sums of a group, made if they are not there.
  Tensor& sums_of(std::size_t group);
  /// A parameter's place in them.
  Tensor slice_of_sums(std::size_t group, std::size_t index);

  /// A reduced gradient of a parameter that touches this rank's partition.
  virtual void keep(std::size_t group, std::size_t index, const Tensor& gradient) = 0;
  /// All of a backward's reductions are done.
  virtual void finish_reductions() {}

 private:
  void before_backward(bool boundary) final { boundary_ = boundary; }
  void after_backward(bool boundary) final;
  void ready(Parameter& parameter, Tensor gradient);
  bool reduces_when_ready() const { return stage2() || plan().zero.overlap_comm; }

  void add_to_sums(std::size_t group, std::size_t index, const Tensor& gradient);

  GradientBuckets buckets_;
  std::vector<Tensor> sums_;  // by group
  bool boundary_ = false;
};

}  // namespace plimsoll
