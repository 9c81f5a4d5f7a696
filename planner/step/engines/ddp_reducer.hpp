// When does DistributedDataParallel reduce which gradients?  Gradients are copied, divided by the number of ranks, into
// buckets as they become ready; a full bucket is all-reduced on a stream of its own beside the rest of backward; at the end
// the sums are copied back into the gradients (gradient_as_bucket_view is off).
//
// Until the first backward has shown the order, one bucket holds all gradients of a type.  Then buckets are made anew in the
// order in which gradients became ready: the first of them closes at 1 MiB, the others at 25 MiB, each with the parameter
// that reaches the limit.  Either way all gradients are in memory twice.
// Source: PyTorch 2.11, DistributedDataParallel and its Reducer, defaults.
#pragma once

#include <vector>

#include "planner/step/autograd/autograd.hpp"

namespace plimsoll {

inline constexpr std::int64_t ddp_first_bucket_bytes = std::int64_t{1} << 20;
inline constexpr std::int64_t ddp_bucket_bytes = std::int64_t{25} << 20;
/// Parameters are sent from the first rank to all in flat buffers of this size.
inline constexpr std::int64_t ddp_broadcast_bytes = std::int64_t{250} << 20;

/// Parts `parameters` into buckets of one type each, in order; a bucket closes when it holds its limit or more.
/// @param limits of the first, second, ... bucket of a type, in bytes; the last one holds for all further ones
std::vector<std::vector<Parameter*>> assign_buckets(const std::vector<Parameter*>& parameters,
                                                    const std::vector<std::int64_t>& limits);

class DdpReducer {
 public:
  /// Makes the first buckets, after the parameters have been sent from the first rank to all.
  /// @param parameters all of the model, in construction order
  DdpReducer(Trace& trace, const std::vector<Parameter*>& parameters);

  /// Parameters whose gradients are reduced in this backward: all that need one, or none (no_sync).
  void begin(bool synchronise);
  /// The gradient of `parameter` is complete.
  void ready(Parameter& parameter);
  /// End of backward: waits for the buckets and copies them back.
  void finish();
  /// Buckets in the order that the first backward showed.
  void rebuild();

 private:
  struct Bucket {
    std::vector<Parameter*> parameters;
    Tensor sums;
    std::size_t missing = 0;
  };

  void broadcast(const std::vector<Parameter*>& parameters);
  void make_buckets(const std::vector<std::vector<Parameter*>>& assignment);
  void reduce(Bucket& bucket);

  Trace& trace_;
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> bucket_of_;  // by parameter index
  std::size_t next_ = 0;                // buckets are reduced in order
  bool synchronises_ = false;
  std::vector<Parameter*> order_;  // in which the gradients of the latest backward became ready
};

}  // namespace plimsoll
