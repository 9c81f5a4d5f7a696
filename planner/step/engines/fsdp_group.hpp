// How does fully_shard keep, gather and reduce the parameters of one group (a decoder layer, or the root with what no layer
// holds)?  Each parameter is cut along its first dimension into W shards, padded to equal size:
//   s(p) = ceil(rows / W) * (numel / rows),  G = sum of s(p) over the group.
// A gather casts the G shard elements into one flat input, gathers G W elements, and copies them out into the parameters; a
// reduction copies the gradients into G W elements of the reduce type, and leaves G elements: the sharded gradient.
// With offload the shards live in host memory, each in a block of its own: a gather copies them to the device and casts them
// one by one, a reduction copies each gradient back.
// Source: PyTorch's fully_shard (2.11) read in Python, and the allocator trace of a real step, event by event.
#pragma once

#include <vector>

#include "planner/step/autograd/autograd.hpp"

namespace plimsoll {

class FsdpGroup;

/// What the groups of a model share: the meshes, the types, and what is in flight on the streams.
struct FsdpContext {
  Trace& trace;
  int shards = 1;    ///< W, ranks of the shard group
  int replicas = 1;  ///< > 1: hybrid sharding, sharded gradients are summed over the replicas
  DType shard_dtype = DType::fp32;
  DType reduce_dtype = DType::fp32;
  int multiprocessors = 132;
  bool on_host = false;  ///< shards and gradients live in host memory (CPUOffloadPolicy)
  bool pinned = true;

  /// The output of the last gather of the forward; it dies when the next group has been copied out.
  Tensor last_gather;
  OpId last_copy_out = 0;
  /// The input of the last reduction; it dies when the next one begins.
  Tensor last_reduce_input;
  OpId last_reduce_scatter = 0;
  /// Groups in the order in which their forward ended; backward gathers ahead in the reverse order.
  std::vector<FsdpGroup*> forward_order;

  GroupId shard_group() const;
};

/// A parameter as this rank holds it.
struct FsdpParameter {
  Parameter* parameter = nullptr;
  std::int64_t padded = 0;  ///< s(p), elements
  std::int64_t local = 0;   ///< without the padding; less than s(p), or 0, on the last ranks of an uneven cut
  Tensor shard;             ///< persistent, s(p) elements
  Tensor gradient;          ///< a view of the group's reduced gradient
};

/// The parameters that are gathered and reduced together.
class FsdpGroup {
 public:
  FsdpGroup(FsdpContext& context, int layer) : context_(context), layer_(static_cast<std::int16_t>(layer)) {}
  FsdpGroup(const FsdpGroup&) = delete;
  FsdpGroup& operator=(const FsdpGroup&) = delete;

  void add(Parameter& parameter, int shard_rank);
  std::vector<FsdpParameter>& parameters() { return parameters_; }
  std::int16_t layer() const { return layer_; }

  void pre_forward();
  void post_forward(bool reshard);
  /// Gathers what was resharded, then the group that ran before this one (its output only).
  void pre_backward();
  /// Reshards and reduces; does nothing the second time.
  void post_backward();
  /// End of backward.
  void finalize();

 private:
  enum class Stage : std::uint8_t { idle, pre_backward, post_backward };

  void unshard();
  void wait_for_unshard(bool forward);
  OpId copy_out();
  void copy_from_shards();
  void reshard();
  void reduce(const std::vector<FsdpParameter*>& owners, std::vector<Tensor> gradients);
  void concatenate(const std::vector<FsdpParameter*>& owners, const std::vector<Tensor>& gradients,
                   const Tensor& input);
  /// A shard in the type that is gathered, on the device; the shard itself if it is that already.
  Tensor gather_input(const FsdpParameter& p);
  std::vector<Tensor> shards_on_device();
  void keep_on_host(const std::vector<FsdpParameter*>& owners, const Tensor& reduced);
  void keep_or_add(const std::vector<FsdpParameter*>& owners, const Tensor& reduced);
  bool casts() const;
  DType dtype() const { return parameters_.front().parameter->dtype; }

  FsdpContext& context_;
  std::int16_t layer_;
  std::vector<FsdpParameter> parameters_;
  Stage stage_ = Stage::idle;
  bool unsharded_ = false;
  Tensor gather_output_;                 // gathered, not copied out yet
  Tensor reduced_;                       // hybrid sharding: held until the end of backward
  std::vector<std::size_t> forward_at_;  // positions in forward_order
};

/// Bytes of the table that the copy-out kernel reads: of each of n parts its two addresses, size and first block, and of
/// each block its part.  A block copies 2048 f bytes of a part of one rank, f such that all blocks of W ranks fit four waves.
/// @param part_bytes bytes of each parameter's shard
Bytes copy_out_table(const std::vector<std::int64_t>& part_bytes, int ranks, int multiprocessors);

/// Bytes of the table that the concatenation reads: six numbers a tensor, two more, and of each block of 2048 bytes of one
/// rank's part its tensor.
/// @param part_bytes bytes of each parameter's shard in the type that is reduced
Bytes concatenation_table(const std::vector<std::int64_t>& part_bytes);

}  // namespace plimsoll
