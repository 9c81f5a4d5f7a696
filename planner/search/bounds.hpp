// What can a plan not be better than?  Closed forms that lie below every memory peak and every step time of the plan's step
// program.  They serve to discard plans and are never reported.
//
// Memory, of one GPU, with P parameters of which the rank holds D dense and E expert ones, over dp = world and
// edp = world / ep ranks; a bytes per element of the computing type, m of a moment, N = micro-batch x sequence tokens:
//   states            stage 0         (a + 4 + 2 m)(D + E)          engine's own form: see bounds.cpp
//                     stages 1, 2     a (D + E) + (4 + 2 m)(D / dp + E / edp)
//                     stage 3         (a + 4 + 2 m)(D / dp + E / edp)
//   when backward     the inputs that each layer's products, attention and activation need for their gradients; a layer that
//   begins            is recomputed keeps its own input (a N h); and the loss in full: logits, log-softmax and its gradient,
//                     12 N V
// Time of a step:
//   compute           N (2 weights a token passes + attention's causal half) FLOPs, three times, and once more for layers
//                     that are recomputed, at the device's peak
//   experts' exchange four all-to-alls of N k h a bytes a layer, over the links that the expert group uses
//   parameters        what gathers and reductions take (planner/search/communication_bound.hpp)
// added where they share a stream, else the largest; and after them
//   update on the host  of the (D / dp + E / edp) elements that are this rank's, and at stage 3 their copy to the device
// Sources: DeepSpeed's ZeRO paper (states), PyTorch's derivative rules (what a product keeps), nccl-tests (bytes sent).
#pragma once

#include <algorithm>
#include <cstdint>

#include "planner/search/communication_bound.hpp"
#include "planner/spec/scenario.hpp"

namespace plimsoll {

/// What no kernel of the evaluator exceeds.
struct PeakRates {
  double matrix_flops_per_s = 0;  ///< of 16-bit types
  double fp32_flops_per_s = 0;
  LinkPrices links;
  HostPeaks host;
};

/// The device's published dense peaks.
PeakRates published_peaks(const DeviceSpec& device);

/// Per micro-batch: what any plan takes at least that lays out the same layers at this micro-batch; 0: not known.
struct LayersTime {
  double device_s = 0;  ///< of the stream that computes
  double host_s = 0;    ///< of the host that launches them and runs their hooks
  double longest_s() const { return std::max(device_s, host_s); }
};

class PlanBounds {
 public:
  /// @param plan its micro-batch and accumulation do not matter
  PlanBounds(const ModelSpec& model, const ClusterSpec& cluster, const PeakRates& peaks, const Plan& plan);

  Bytes states() const { return states_; }
  /// Allocated bytes at their peak in a steady step.
  Bytes device_memory(std::int64_t micro_batch) const;
  /// Of a node, for what is offloaded.
  Bytes host_memory() const { return host_; }
  /// Of one optimizer step.
  double step_seconds(std::int64_t micro_batch, std::int64_t accumulation) const;
  /// The same from its layers' own time.
  /// @param beside_layers of what adds to that time, so much lengthens the step (SearchOptions)
  double step_seconds(const LayersTime& layers, std::int64_t accumulation, double beside_layers) const;

 private:
  void bound_states(const ModelSpec& model, const ClusterSpec& cluster, const PeakRates& peaks, const Plan& plan);
  void bound_activations(const ModelSpec& model, const Plan& plan);
  void bound_compute(const ModelSpec& model, const PeakRates& peaks, const Plan& plan);
  void bound_exchange(const ModelSpec& model, const ClusterSpec& cluster, const PeakRates& peaks, const Plan& plan);

  std::int64_t sequence_ = 0;
  Bytes states_, host_, bytes_per_token_;
  double seconds_per_token_ = 0;   ///< of the layers
  double exchange_latency_s_ = 0;  ///< of a micro-batch, of exchanges on the stream that computes
  double after_layers_s_ = 0;      ///< when all have been run, the device waits for the host's optimizer
  CommunicationBound communication_;
};

}  // namespace plimsoll
