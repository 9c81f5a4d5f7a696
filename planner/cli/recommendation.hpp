// Which plan do we recommend, and why?  A search over the plans that the user leaves open, the best of them in full, what
// speaks for it against its neighbours, and the assumptions on which the choice rests.
#pragma once

#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "planner/cli/evaluate.hpp"
#include "planner/cli/simulated.hpp"
#include "planner/search/search.hpp"

namespace plimsoll {

struct RecommendOptions {
  InputOptions inputs;
  std::int64_t global_batch = 0;  ///< sequences of an optimizer step; 0: the file's, else most tokens/s
  int top = 5;
  double budget_s = 5;
  bool accept_tight = false;
  std::string emit;                                     ///< folder; empty: none
  std::function<void(const SearchProgress&)> progress;  ///< empty: a line on the terminal
  std::stop_token
      stop;  ///< where stop is requested the best plan found so far is the answer, without looking around it
};

/// A plan of the list: a choice's best.
struct Listed {
  Found found;
  double tokens_per_s = 0;  ///< of the whole job
  std::string why;          ///< what speaks for it, or what it loses against the first
};

struct Recommendation {
  Scenario asked;
  std::int64_t global_batch = 0;
  SearchResult search;
  std::vector<Listed> plans;  ///< the recommended one first
  std::vector<Listed> front;
  std::optional<Evaluation> best;  ///< as `ledger` answers for it
  std::optional<SimulatedStep> step;
  std::vector<std::string> why;       ///< sentences on the recommended plan
  std::vector<std::string> deciding;  ///< sentences on assumptions that would change the choice
  std::string time_source;            ///< what the times are from
  std::string what_helps;             ///< where none fits: a sentence
};

/// The scenario, open in what a ds_config.json does not state but DeepSpeed derives: sizes of the batch equation, the kernel of
/// its own optimizer.  Where the file states the global batch, accumulation makes up for what else is searched.
Scenario asked_of(const Inputs& inputs);

Recommendation recommend(const Inputs& inputs, const Calibration& calibration, const RecommendOptions& options);

/// "no plan fits", or that none was found in the time given.
std::string nothing_fits(const SearchResult& search);

/// "ZeRO-2 instead of 3, micro-batch 4 instead of 8": how b differs from a; "" if it does not.
std::string difference_in_words(const Plan& a, const Plan& b);

/// One line, while the search is on.
std::string progress_in_words(const SearchProgress& progress);

/// Tokens of the whole job in one optimizer step.
double tokens_of_step(const Plan& plan);

/// What a person reads.
/// @param coloured for a terminal
std::string recommendation_text(const Recommendation& recommendation, bool coloured);
std::string recommend_json(const Recommendation& recommendation);

/// Sentences on how fast links, how cheap the host and how even routing must be for the first plan to stay the best, or to
/// fit.  Looks no longer than `budget_s`.
std::vector<std::string> deciding_assumptions(const Recommendation& recommendation, const Calibration& calibration,
                                              double budget_s);

/// @throws MachineError if emit_plan() could not write into that folder, for what is known before
void check_emit_folder(const std::string& folder);

/// Writes plan.json, ds_config.json (engine deepspeed), launch.sh and report.md for the recommended plan.
/// @param inputs what --model and --cluster named, which launch.sh of engine plimsoll names again; empty: the specs' own names
/// @throws MachineError if the folder or a file cannot be written
void emit_plan(const Recommendation& recommendation, const std::string& folder, const InputOptions& inputs);

}  // namespace plimsoll
