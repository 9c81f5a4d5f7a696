// One branch and bound: the fastest plan within a limit on GPUs and on memory (planner/search/search.hpp).
#pragma once

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
};

struct RoundResult {
  std::optional<CandidateId> best;
  bool proven = false;
  double best_seconds_per_token = 0;
  double least_bound = 0;  ///< where not proven: no undecided candidate takes less time a token
  std::map<std::string, std::int64_t> excluded;
};

double seconds_per_token(const Space& space, const CandidateId& id, double step_s);

class Round {
 public:
  Round(RoundContext& context, const RoundLimit& limit);
  RoundResult run();

 private:
  /// A choice with its undecided candidates.
  struct Open {
    std::uint32_t choice = 0;
    double bound = 0;  ///< seconds per token
    double turn = 0;   ///< the bound, more for what is rarely the best: decides the order, nothing else
    bool listed = false;
    std::vector<CandidateId> live;
    int fits_up_to = -1;     ///< largest micro-batch index found to fit
    int closed_form_to = 0;  ///< from this index on closed forms exclude all
  };
  struct Outlined {
    CandidateId id;
    Outline outline;
  };
  /// What one thread does for a choice: its layers' time at each micro-batch is found on short models; or the largest
  /// micro-batch of a kind of candidates for which they have room; or candidates of one micro-batch are evaluated.
  struct Task {
    Open open;
    std::vector<CandidateId> floors;
    std::vector<CandidateId> by_micro;  ///< of one kind, ascending
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
  void open_choices();
  void list(Open& open);
  bool refresh(Open& open);
  bool decide(Open& open, const CandidateId& id, double& lower);
  bool has_no_room(const CandidateId& id) const;
  bool is_tight_at_best(const CandidateId& id) const;
  void settle(Open& open, const CandidateId& id, const Evaluated& evaluated);
  bool plan_outlines(Task& task) const;
  void outline(Task& task) const;
  Bytes room() const;
  bool time_is_up() const;
  std::vector<CandidateId> choose(const Open& open) const;
  std::vector<Task> next_tasks();
  void take(Queue& queue, std::size_t most, std::vector<Task>& tasks);
  void work(std::vector<Task>& tasks) const;
  void evaluate(Task& task, double best) const;
  void close_rest();
  bool fits(const Evaluated& evaluated) const;
  bool is_beaten(double seconds_per_token, const CandidateId& id) const;
  double turn_of(const Open& open) const;
  void learn(const Task& task);
  void exclude(const char* reason, std::int64_t count = 1);
  int last_micro_in_memory(const PlanBounds& bounds) const;

  RoundContext& context_;
  RoundLimit limit_;
  Queue queue_, begun_;
  RoundResult result_;
  std::map<std::tuple<int, MoeImplementation, Offloading, int>, double> missed_by_;
  bool best_is_settled_ = false;  ///< it is no longer among the undecided
};

}  // namespace plimsoll
