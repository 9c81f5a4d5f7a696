// How do DeepSpeed's stages 1 and 2 reduce gradients?  Ready gradients are copied, in the order in which they come, into a
// bucket of B elements.  Before one that does not fit (elements + numel > B), and at the end, the bucket is reduced:
//   - it is divided by the number of data-parallel ranks, in place;
//   - it falls into slices by owner (the rank whose partition they lie in), neighbours of one owner and group joined;
//   - each process group in it gets one all-reduce; of a single slice in place, of several in a flattened copy, from which
//     a rank copies back what it owns;
//   - whole gradients of parameters that touch this rank's partition are handed on, the others are dropped.
// A parameter larger than B is reduced alone, from its own gradient; its slices go together until they exceed B elements.
// With fp32 accumulation what this rank owns is added up parameter by parameter: such slices are not joined.
// Without contiguous_gradients there is no bucket: gradients stay where autograd put them, are reduced in a flattened copy of
// all of them (of a single one in place) and copied back.  Others' gradients with memory of their own live on: at stage 1 to
// the end of the reductions, at stage 2 with overlap_comm to the next one, before which the host waits for the device.
// With overlap_comm there are two buckets, and all this runs on a stream of its own; the compute stream then waits for
// the reductions before the last one.
//
// Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py; allocator traces of stage 1, and of stage 2 with native MoE.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "planner/step/engines/deepspeed_groups.hpp"

namespace plimsoll {

class GradientBuckets {
 public:
  /// @param groups outlives this object
  GradientBuckets(Trace& trace, const Plan& plan, const std::vector<OptimizerGroup>& groups);

  /// Called during a reduction with each parameter that touches this rank's partition and its whole, reduced gradient.
  std::function<void(std::size_t group, std::size_t index, const Tensor& gradient)> keep;

  /// Where slices are added in fp32: called with each group of which this rank has one before they are reduced, and with each
  /// reduced gradient of them.
  std::function<void(std::size_t group)> claim;
  std::function<void(std::size_t group, std::size_t index, const Tensor& gradient)> sum;

  /// Allocates the bucket's memory if it is not there.
  void set_up();
  /// Takes the parameter's gradient; reduces what is in the bucket before if it does not fit.
  void add(Parameter& parameter);
  /// Reduces what is left.
  void reduce();
  /// Gives the bucket's memory back.
  void release();
  /// At stage 1 with fp32 accumulation gradients are summed, and reduced, in fp32.
  bool sums_fp32() const;

 private:
  bool adds_slices() const { return plan_.gradient_dtype == DType::fp32 && plan_.compute_dtype() != DType::fp32; }

  struct Entry {
    std::size_t group, index;
    Tensor gradient;  // a view of the bucket, or the parameter's own
  };
  struct Slice {
    GroupId group;
    std::int64_t owner, ranks, my_rank, elements;
  };

  std::vector<Slice> slices() const;
  void claim_groups();
  void add_slices();
  void reduce_separate();
  void average(const Tensor& gradients);
  void reduce_together(const Tensor& source, const std::vector<Slice>& all);
  void reduce_once(const Tensor& source, std::span<const Slice> chunk, std::int64_t elements);
  void communicate(Tensor& tensor, const Slice& slice);

  Trace& trace_;
  const Plan& plan_;
  const std::vector<OptimizerGroup>& groups_;
  std::vector<std::pair<std::size_t, std::size_t>> place_;  // by parameter index: group, position in it
  std::vector<Tensor> buffers_;
  std::size_t current_ = 0;
  std::int64_t elements_ = 0;
  std::vector<Entry> entries_;
  std::vector<Tensor> reduced_;  // others' gradients that live on
  Tensor flat_;                  // what was reduced, until its slices have been added in fp32
};

}  // namespace plimsoll
