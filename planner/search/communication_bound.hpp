// How long do a step's collectives take at least?  Those of one group run one after another, as a communicator's kernels do, so
// a step is no shorter than the collectives of any one group, each by the straight line that its price nowhere goes below:
// latency for each, and the rest by bytes.
//
// Full sizes of what is sent for the P trained parameters of a mesh (dense ones: all ranks; experts that are held locally: the
// ranks that hold the same), a bytes an element of the computing type, c of the communicated one:
//                  in each micro-batch                              once a step
//   ddp, stage 0                                                    all-reduce c P
//   stage 1                                                         reduction c P, all-gather a P
//   stage 2        reduction c P                                    all-gather a P
//   stage 3        reduction c P, all-gather a P' before the
//                  forward and a (P" - K) before the backward
//   fsdp2          all-gather a P, and a P" where resharded         (its reduction is left out)
// P' leaves out what stage 3 keeps whole, P" also what is outside the layers.  K is what may stay gathered from the forward to the
// backward: reuse distance, live limit and a prefetch, and the largest layer.
// As many collectives they are at least: one, and more where no one takes more than a bucket and the parameter that goes beyond
// it (reduce_bucket_size), a prefetch and the largest layer (stage 3's gathers), or a layer (fsdp2).
// DeepSpeed without overlap_comm sends on the stream that computes: there all groups add to the layers' time, as exchanges
// of experts do with it or without, since nothing runs between a layer's rows and its experts.  On that stream stages 1 and 2
// also copy what an optimizer on the host needs: in the end of a step this rank's part of the gradients in the master's type,
// and at stage 2 the gradients of all parameters held, a P, to the host after each micro-batch but the last and back before the
// next one's are added.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "planner/spec/collective_curve.hpp"
#include "planner/spec/scenario.hpp"

namespace plimsoll {

/// What no collective of the evaluator takes less than.
struct LinkPrices {
  std::optional<std::vector<CollectivePrice>> calibrated;  ///< none: the links' published bandwidth, without latency
  LeastSeconds least(const ClusterSpec& cluster, CollectiveKind kind, const GroupShape& group) const;
};

/// What no copy and no update of the evaluator exceeds; 0: not known.
struct HostPeaks {
  double copy_bytes_per_s = 0;      ///< between host and device
  double update_s_per_element = 0;  ///< of an optimizer on the host
};

class CommunicationBound {
 public:
  CommunicationBound() = default;
  /// @param plan its micro-batch and accumulation do not matter
  CommunicationBound(const ModelSpec& model, const ClusterSpec& cluster, const LinkPrices& links, const HostPeaks& host,
                     const Plan& plan);

  /// Of the group with most to send.
  double step_seconds(std::int64_t accumulation) const;
  /// Of all collectives and copies that run on the stream that computes.
  double beside_compute(std::int64_t accumulation) const;

 private:
  struct OfGroup {
    double each_s = 0, once_s = 0;
    double of(std::int64_t accumulation) const { return each_s * static_cast<double>(accumulation) + once_s; }
  };
  std::array<OfGroup, 2> groups_;  ///< dense, experts
  OfGroup copies_;                 ///< each: of micro-batches but the last
  bool with_compute_ = false;
};

}  // namespace plimsoll
