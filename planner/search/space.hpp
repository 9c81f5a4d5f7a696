// Which plans are there to choose from?  Every legal way to set the keys that the user left open:
//
//   ZeRO stage x expert parallelism x expert implementation x recomputation x offload x buffers x world   (a choice)
//   x micro-batch x gradient accumulation                                                                 (a candidate)
//
// A choice is a few bytes; its plan, with all defaults, is made when it is looked at.  Keys that the user stated keep their
// value.  Under a global batch of B sequences, B = micro-batch x accumulation x world; without one, accumulation is 1, 2, 4 or
// 8.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "planner/spec/scenario.hpp"

namespace plimsoll {

enum class Offloading : std::uint8_t { none, optimizer, both };

/// All that is chosen beside micro-batch and accumulation.  Where a field is about another engine or another stage, it has
/// its first value.
struct Choice {
  int world = 1;
  int stage = 0;
  MoeImplementation experts = MoeImplementation::grouped;
  bool leaf = false;  ///< the MoE block made a ZeRO-3 leaf module, where it is none by default
  int expert_parallel = 1;
  int replicate = 1;           ///< fsdp2
  bool reshard = true;         ///< fsdp2
  bool small_buckets = false;  ///< reduce_bucket_size
  bool small_gathers = false;  ///< stage 3: prefetch, max_live and reuse
  Offloading offload = Offloading::none;
  int recompute_every = 0;
  auto operator<=>(const Choice&) const = default;
};

/// Sizes in elements that stand for "small", a tenth of DeepSpeed's defaults.
inline constexpr std::int64_t small_bucket = 50'000'000;
inline constexpr std::int64_t small_prefetch = 5'000'000;
inline constexpr std::int64_t small_live = 100'000'000;

/// A reason for which plans are not recommended, and how many fell under it.
struct Exclusion {
  std::string reason;
  std::int64_t count = 0;
};

class Space {
 public:
  /// @param asked what the user stated; Plan::states() says what stays as it is
  /// @param global_batch sequences of one optimizer step over all ranks; 0: free
  Space(const Scenario& asked, std::int64_t global_batch);

  const Scenario& asked() const { return asked_; }
  const std::vector<Choice>& choices() const { return choices_; }  ///< legal ones, in order of preference at equal time
  std::optional<std::uint32_t> index_of(const Choice& choice) const;
  /// Ascending; those up to the first that no plan could hold.
  const std::vector<std::int64_t>& micro_batches() const { return micro_batches_; }
  /// Descending; empty where the batch does not divide.
  std::vector<std::int64_t> accumulations(const Choice& choice, std::int64_t micro_batch) const;

  /// With all defaults.
  Plan plan(const Choice& choice, std::int64_t micro_batch, std::int64_t accumulation) const;
  /// True if the rules that look at batch sizes allow the plan too.
  bool is_legal(const Plan& plan) const;

  std::int64_t size() const { return size_; }  ///< candidates, those of refused choices included
  /// Choices that the engine refuses: the rule's words, and how many candidates fell under it.
  const std::vector<Exclusion>& refused() const { return refused_; }

 private:
  struct ExpertChoice {
    MoeImplementation experts;
    int expert_parallel;
    bool leaf;
  };
  std::vector<int> worlds() const;
  std::vector<ExpertChoice> expert_choices(int world, int stage) const;
  std::vector<Choice> choices_of(int world, int stage) const;
  void list_micro_batches();
  void add(const Choice& choice);
  void refuse(const std::string& code, const std::string& reason, std::int64_t candidates);
  std::int64_t passes(const Choice& choice, std::int64_t micro_batch) const;
  std::int64_t candidates_of(const Choice& choice) const;

  Scenario asked_;
  std::int64_t global_batch_;
  std::vector<std::int64_t> expert_counts_;
  std::vector<std::int64_t> micro_batches_;
  std::vector<Choice> choices_;
  std::map<Choice, std::uint32_t> index_;
  std::vector<Exclusion> refused_;
  std::map<std::string, std::size_t> refused_by_code_;
  std::int64_t size_ = 0;
};

}  // namespace plimsoll
