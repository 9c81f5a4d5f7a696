// One branch and bound: the fastest plan within a limit on GPUs and on memory (planner/search/search.hpp).
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <queue>
#include <string>
#include <tuple>
#include <vector>

#include "planner/search/memo.hpp"

namespace plimsoll {

/// What a round may choose from.
struct RoundLimit {
  int world = 0;           ///< GPUs; 0: any
  Bytes device_memory;     ///< what closed forms are held against
  bool caps_peak = false;  ///< the job's peak on the device must not be above it either; else the verdict decides
  bool accept_tight = false;
  bool first_is_enough = false;  ///< stops at the first plan that fits
  bool once = false;             ///< only plans with the least accumulation, whose programs are short
};

/// What all rounds share.
struct RoundContext {
  const Space& space;
  const Evaluator& evaluate;
  const SearchOptions& options;
  const std::vector<PlanBounds>& bounds;  ///< by choice
  Memo& memo;
  std::chrono::steady_clock::time_point deadline;
  std::chrono::steady_clock::time_point last_moment;  ///< for a first plan that fits, if none is known at the deadline

  bool is_over(std::chrono::steady_clock::time_point end) const {
    return options.stop.stop_requested() || std::chrono::steady_clock::now() >= end;
  }
};

struct RoundResult {
  std::optional<CandidateId> best;
  bool proven = false;
  double best_seconds_per_token = 0;
  double least_bound = 0;     ///< where not proven: no undecided candidate takes less time a token
  double least_expected = 0;  ///< where not proven: by the estimates of those that have one; infinite: none has
  std::map<std::string, std::int64_t> excluded;
};

double seconds_per_token(const Space& space, const CandidateId& id, double step_s);

class Round {
 public:
  Round(RoundContext& context, const RoundLimit& limit);
  RoundResult run();

 private:
  /// What estimates tell of the micro-batches of a choice, and of which of them fit.
  struct Known {
    double least_s = 0, least_that_fits_s = 0;  ///< seconds per token; 0: none was estimated
    int fits_to = -1;                           ///< index of the largest that is expected to fit
    int breaks_from = -1;                       ///< of the smallest that is not; -1: none was found
    void breaks_at(int micro) {
      breaks_from = breaks_from < 0 ? micro : std::min(breaks_from, micro);
      fits_to = std::min(fits_to, micro - 1);
    }
    /// Halves what is open between the two; -1: nothing is.
    int next_to_try() const {
      const int middle = (fits_to + breaks_from) / 2;
      return breaks_from >= 0 && middle > fits_to ? middle : -1;
    }
  };
  /// A choice with its undecided candidates.
  struct Open {
    std::uint32_t choice = 0;
    double bound = 0;            ///< seconds per token
    double turn = 0;             ///< seconds per token that its most promising candidate is expected to take
    CandidateId target;          ///< that candidate
    std::array<Known, 2> known;  ///< by Memo::kind_of()
    bool listed = false;
    std::vector<CandidateId> live;
    int fits_up_to = -1;     ///< largest micro-batch index found to fit
    int closed_form_to = 0;  ///< from this index on closed forms exclude all
  };
  struct Outlined {
    CandidateId id;
    Outline outline;
  };
  /// What one thread does for a choice: short models are asked for something; or candidates of one micro-batch are evaluated.
  struct Task {
    Open open;
    OutlineOf what = OutlineOf::layers;
    std::vector<CandidateId> asked;  ///< for memory: of one kind, ascending, and the largest with room is looked for
    std::vector<Outlined> outlined;
    std::vector<CandidateId> ids;
    std::vector<Evaluated> results;
  };
  struct Later {
    bool operator()(const Open& a, const Open& b) const {
      return a.turn != b.turn ? a.turn > b.turn : a.choice > b.choice;
    }
  };

  using Queue = std::priority_queue<Open, std::vector<Open>, Later>;

  void take_known();
  double least_bound(std::uint32_t choice, int last_micro) const;
  void open_choices();
  void list(Open& open);
  bool refresh(Open& open);
  void aim(Open& open, const CandidateId& id, double lower) const;
  double expected(const Open& open, const CandidateId& id, double lower) const;
  double guessed(const Open& open, const CandidateId& id, double lower) const;
  double missed_by(const Choice& choice) const;
  double share_of_room(const Memo::Estimate& estimate) const;
  bool is_expected_to_fit(const Memo::Estimate& estimate) const;
  double expected_if_it_fits(const CandidateId& id) const;
  bool decide(Open& open, const CandidateId& id, double& lower);
  bool has_no_room(const CandidateId& id) const;
  bool is_tight_at_best(const CandidateId& id) const;
  void settle(Open& open, const CandidateId& id, const Evaluated& evaluated);
  bool has_outlines() const { return static_cast<bool>(context_.options.outline); }
  CandidateId to_lay_out(const Open& open) const;
  bool plan_outlines(Task& task) const;
  void outline(Task& task) const;
  void enter_outlines(Task& task);
  Bytes room() const;
  bool time_is_up() const;
  bool evaluations_are_due() const;
  double aim_at_what_fits(Open& open) const;
  std::vector<Task> take_what_fits(std::size_t threads);
  std::vector<CandidateId> choose(const Open& open) const;
  std::vector<Task> next_tasks();
  void take(Queue& queue, std::size_t most, std::vector<Task>& tasks);
  bool take_one(Queue& queue, std::vector<Task>& tasks);
  void work(std::vector<Task>& tasks) const;
  void evaluate(Task& task, double best) const;
  void close_rest();
  bool fits(const Evaluated& evaluated) const;
  bool is_beaten(double time, const CandidateId& id) const;
  /// What steps that take longer than their bounds by like factors have in common: stage, experts and how they are spread,
  /// offload, recomputation.
  using Kind = std::tuple<int, MoeImplementation, int, Offloading, int>;
  static Kind kind_of(const Choice& choice) {
    return {choice.stage, choice.experts, choice.expert_parallel, choice.offload, choice.recompute_every};
  }
  double turn_of(const Open& open) const;
  void learn(const CandidateId& id, double step_s);
  void learn_of(Open& open, const CandidateId& id);
  void exclude(const char* why, std::int64_t count = 1);
  int last_micro_in_memory(const PlanBounds& bounds) const;

  RoundContext& context_;
  RoundLimit limit_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Queue queue_, begun_;  ///< choices that were not looked at, and that were
  RoundResult result_;
  std::map<Kind, double> missed_by_;
  bool best_is_settled_ = false;  ///< it is no longer among the undecided
};

}  // namespace plimsoll
