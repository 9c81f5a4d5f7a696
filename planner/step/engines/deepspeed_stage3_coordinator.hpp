// Which parameters does ZeRO stage 3 gather when, and which does it keep?  The coordinator that DeepSpeed hangs on every
// module, written out.
//
// A visit is the hook before a module's forward or before its backward; i counts visits.  The first forward and backward
// record the order of visits; from it come the queue of (parameter, visit), parameters of a visit in id order.
//   enter m at i   gather m's parameters that are neither whole nor in flight; wait for those in flight; compute waits for
//                  all that the gather stream was given; then, once the order is known,
//                  pop the queue until every parameter of m that was not promised for i or later has been popped;
//                  prefetch: room = min(max_live - avail, bucket); pop entries while the newly needed elements stay below room
//                  (so a call overshoots by up to one parameter); every entry popped promises its parameter for its visit
//   leave m at i   candidates are m's parameters, but not persistent ones, nor those promised for a visit after i, nor those
//                  that a visit j >= i uses with elements(i..j-1) < max_reuse_distance
// avail counts elements from the moment their gather is issued.  The decision at (m, i) is taken once and kept.
// Whether the distance counts a visited module's own parameters or all below it follows the module that is left: a leaf
// counts everything below, an ordinary module only what a module itself holds.
// Source: DeepSpeed 0.19.8; every gather of four measured runs agrees in count and size.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "planner/step/engines/deepspeed_stage3_parameters.hpp"

namespace plimsoll::zero3 {

class Coordinator {
 public:
  Coordinator(ShardedParameters& parameters, const TorchModel& model, const ZeroOptions& options);

  /// Start of the model's forward: what is still in flight is dropped, the queue starts anew.
  void begin_forward();
  /// The hook before a module's forward or backward.
  /// @param recomputed_for the module in whose backward this forward runs again: frozen parameters that it fetches go when
  ///                       that module is left; null: no recomputation
  void enter(const Module& module, const Module* recomputed_for = nullptr);
  /// The hook after a module's forward or backward.
  void leave(const Module& module, bool backward = false);
  /// Makes every parameter sharded (start of the optimizer's step).
  void release_all();

  /// The parameters that a visit of the module fetches.
  const std::vector<int>& fetched_by(const Module& module) const {
    return fetched_[static_cast<std::size_t>(module.id)];
  }
  /// Elements that are whole or on their way, as the prefetcher counts them.
  std::int64_t available() const { return available_; }

 private:
  enum class Trace : std::uint8_t { none, recording, complete };
  struct Use {
    int parameter = 0;
    int visit = 0;
  };
  /// Visits by what they hold: elements before each visit, and the visits that use each parameter.
  struct Walk {
    std::vector<std::int64_t> elements_before;
    std::vector<std::vector<int>> visits_of;
  };

  void complete_trace();
  Walk walk_over(const std::vector<std::vector<int>>& held) const;
  void discard_from_queue(const std::vector<int>& fetched);
  void prefetch();
  bool first_in_round(int parameter);
  void drop(int parameter);
  void attribute(int parameter, const Module& owner);
  void leave_own(const Module& module);
  std::vector<int> decide_release(const Module& module) const;
  bool reused_soon(const Walk& walk, int parameter) const;

  ShardedParameters& parameters_;
  const ZeroOptions& options_;
  std::int64_t prefetch_bucket_;
  std::vector<std::vector<int>> own_, below_, fetched_;  // by module: parameters of its own, with all below, of a visit
  std::vector<bool> leaf_;                               // by module
  bool any_leaf_ = false;
  std::vector<std::vector<int>> recomputed_;  // by module: frozen parameters fetched by recomputations in its backward

  Trace trace_ = Trace::none;
  std::vector<int> visits_;  // modules
  std::vector<Use> uses_;    // the whole queue
  std::size_t next_use_ = 0;
  Walk own_walk_, below_walk_;
  std::unordered_map<std::uint64_t, std::vector<int>> decisions_;  // by module and visit
  std::vector<int> promised_;                                      // by parameter: the latest visit
  std::vector<std::uint64_t> met_in_round_;                        // by parameter: the latest walk of the queue
  std::vector<int> wanted_;                                        // by a visit or a prefetch, while it gathers
  std::uint64_t round_ = 0;
  int visit_ = 0;
  std::int64_t available_ = 0;
};

/// Marks as leaves the modules whose parameters per contained layer do not exceed `threshold` elements, outermost first
/// (stage3_module_granularity_threshold); nothing if no module is that small.
void mark_leaves_by_granularity(TorchModel& model, std::int64_t threshold);

/// The parameters of a module and of all modules below it, ascending.
std::vector<int> parameters_below(const Module& module);

}  // namespace plimsoll::zero3
