// What does each op of a rank's step cost alone, and what must have ended before it?  A rank program laid out flat for the
// event loop: each op priced once, repeats unrolled, edges resolved to the ops of this very step, one list a lane.
//
// An edge is kept where it can hold an op back: to an op of another lane, issued earlier in the same step.  To the edges of
// the program one rule is added: collectives of one group run one after another in the order of their issue, whatever their
// lanes, since a communicator's kernels do (NCCL orders them; seen in traces of FSDP2 steps, where a layer's all-gather starts
// when the reduce-scatter issued before it has ended).  Copies of different lanes go on beside each other.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "simulator/fair_share.hpp"
#include "simulator/prices.hpp"
#include "simulator/timeline.hpp"

namespace plimsoll {

/// An op that takes time, as often as it occurs in the step.
struct PricedOp {
  enum class What : std::uint8_t { device, host_work, host_sync };
  OpId op = 0;
  What what = What::device;
  Lane lane = Lane::compute;  ///< that it runs on; of a sync: that the host waits for
  KernelKind kind = KernelKind::small;
  bool collective = false;  ///< with peers: it needs all of them
  bool resident = false;    ///< a collective whose kernel stays on multiprocessors while it waits and runs
  bool noted = true;        ///< host work that becomes an op of the timeline
  bool by_memory = false;   ///< host work bound by memory that a node shares, not by how fast Python is
  Share share = Share::compute;
  std::uint16_t waits = 0;   ///< how many ops it waits for
  GroupId group = 0;         ///< of a collective
  std::uint16_t demand = 0;  ///< into PricedProgram::demands, collectives
  float matrix_s = 0;        ///< of what draws power (Prices::matrix_seconds)
  SimTime host = 0;          ///< of the host: to issue it, or its work
  SimTime repeats = 0;       ///< part of `host`: the launches after the first, of several kernels
  SimTime work = 0;          ///< on its lane, alone, at full clocks
  SimTime sagging = 0;       ///< what a sag of 1 (twice the time of what clocks bound) would add
};

struct PricedProgram {
  const RankProgram* program = nullptr;
  std::vector<PricedOp> ops;              ///< of the step, once each
  std::vector<std::uint32_t> order;       ///< positions in ops, repeats unrolled: the instances in issue order
  std::vector<std::uint32_t> first_edge;  ///< by instance, one more at the end: into edges
  std::vector<std::uint32_t> edges;       ///< instances that must have ended
  std::array<std::vector<std::uint32_t>, lane_count> lanes;  ///< instances of each lane in issue order
  std::vector<Demand> demands;                               ///< of collectives: shares of a GPU's bandwidth, by tier
  double matrix_s = 0;                                       ///< tensor-core FLOPs over the calibrated rate
  SimTime host = 0;                                          ///< all that its host has to do
  std::array<SimTime, lane_count> work{}, sagging{};         ///< sums by lane; of work with the gap after each kernel
  Evidence evidence = Evidence::measured;                    ///< the weakest of its collectives'

  const PricedOp& of(std::uint32_t instance) const { return ops[order[instance]]; }
};

/// @param plain, doubled prices with a sag of 1 and of 2
PricedProgram priced_program(const RankProgram& program, const StepProgram& step, int rank, const Prices& plain,
                             const Prices& doubled);

/// The least time x that a step of these ops takes, where clocks sag by the matrix work M over it: x = L(sag(M / x)), L
/// being the busiest of its lanes and its host.
double least_step_s(const PricedProgram& program, const GemmPrice& gemm, int gpus);

/// By how much clocks sag in a step of so many GPUs that takes `step_s`.
double sag_of(const GemmPrice& gemm, int gpus, double matrix_s, double step_s);

}  // namespace plimsoll
