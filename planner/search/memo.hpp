// What is known of candidates so far?  Evaluations, and the lower bounds that follow from them for candidates that are
// not evaluated: from the same layers under another engine setting, and from relatives that do a part of the work.
#pragma once

#include <array>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "planner/search/search.hpp"

namespace plimsoll {

/// A candidate of a space: indices of its choice and its micro-batch, and its accumulation.  Ordered: at equal time the
/// smaller is preferred.
struct CandidateId {
  std::uint32_t choice = 0;
  std::uint16_t micro = 0;
  std::int64_t accumulation = 1;
  auto operator<=>(const CandidateId&) const = default;
};

struct CandidateHash {
  std::size_t operator()(const CandidateId& id) const {
    return (static_cast<std::size_t>(id.choice) << 28) ^ (static_cast<std::size_t>(id.micro) << 14) ^
           static_cast<std::size_t>(id.accumulation);
  }
};

/// A lower bound of the time, and where it is from.
struct Lower {
  double step_s = 0;
  const char* reason = nullptr;  ///< null: the best plan is faster than it
};

class Memo {
 public:
  Memo(const Space& space, const SearchOptions& options);

  void add(const CandidateId& id, const Evaluated& evaluated);
  void add_floor(const CandidateId& id, const Outline& outline);
  void add_memory(const CandidateId& id, const Outline& outline);
  void add_estimate(const CandidateId& id, const Outline& outline, bool is_close) {
    estimates_.insert_or_assign(id, Estimate{outline.expected_s, outline.expected_to_fit, is_close});
  }
  const Evaluated* find(const CandidateId& id) const;
  const std::unordered_map<CandidateId, Evaluated, CandidateHash>& all() const { return evaluated_; }

  /// A step of that candidate takes at least so long.
  /// @param bounds of its choice
  Lower lower(const CandidateId& id, const PlanBounds& bounds) const;
  /// Its device memory is at least so much; 0: nothing is known.
  Bytes least_memory(const CandidateId& id) const;
  /// Where its device has less memory than that it fits only tightly, if at all; 0: nothing is known.
  Bytes least_to_fit(const CandidateId& id) const;
  struct Estimate {
    double step_s = 0;  ///< 0: none can be made
    Bytes to_fit;       ///< as Outline::expected_to_fit
    bool is_close = false;
  };
  /// Null: not made.
  const Estimate* estimate(const CandidateId& id) const;
  /// Of the same plan with the engine's own buckets and gathers.
  const Estimate* plain_estimate(const CandidateId& id) const;
  std::size_t estimates() const { return estimates_.size(); }
  /// True if its layers' own time is known.
  bool knows_floor(const CandidateId& id) const { return floor_of(id).is_its_own; }
  /// True if the memory of its short models is known.
  bool knows_outline(const CandidateId& id) const;
  /// As far as memory is outlined, candidates of a choice differ by micro-batch and by kind: 1 keeps gradients through a whole
  /// micro-batch that is not the last; outlines of kind 0 are of one micro-batch a step, and hold for 1 too.
  static std::size_t kind_of(const CandidateId& id) { return id.accumulation >= 3 ? 1 : 0; }
  /// Micro-batches of the choice whose live tensors are known.
  std::size_t known_sizes(std::uint32_t choice) const { return sizes_[choice][0].size(); }

 private:
  /// What a micro-batch takes at least: as much as a smaller one whose layers' time is known.
  struct Floor {
    LayersTime layers;
    bool is_its_own = false;
  };
  /// What an evaluated candidate takes beyond its layers.
  struct Beyond {
    std::uint16_t micro = 0;
    std::int64_t accumulation = 1;
    double of_a_sequence_s = 0;
  };
  const Floor& floor_of(const CandidateId& id) const { return floors_[layers_as_[id.choice]][id.micro]; }
  void take_floor(const CandidateId& id, const LayersTime& layers);
  void take_beyond(const CandidateId& id, double step_s);
  Lower with_same_accumulation(const CandidateId& id, const PlanBounds& bounds) const;
  void list_layers();
  void list_relatives();
  void list_savers();

  /// A choice that does a part of what another does.
  struct Relative {
    std::uint32_t choice = 0;
    const char* reason = nullptr;
  };

  const Space& space_;
  const SearchOptions& options_;
  std::unordered_map<CandidateId, Evaluated, CandidateHash> evaluated_;
  /// By choice: which of floors_ is that of its layers.  They do not depend on the number of GPUs and on buckets.
  std::vector<std::uint32_t> layers_as_;
  std::vector<std::vector<Floor>> floors_;   ///< by micro-batch
  std::vector<std::vector<Beyond>> beyond_;  ///< by choice
  std::unordered_map<CandidateId, Estimate, CandidateHash> estimates_;
  std::vector<std::vector<Relative>> relatives_;    ///< by choice
  std::vector<std::vector<std::uint32_t>> savers_;  ///< by choice: itself and those whose tensors are no more
  /// Live tensors by micro-batch.
  using Sizes = std::map<std::int64_t, Bytes>;
  static Bytes extrapolated(const Sizes& sizes, std::int64_t micro_batch);
  struct Outlined {
    std::array<Sizes, 2> live, to_fit;  ///< by kind, from short models: no more than the truth
  };
  static Bytes known_up_to(const Sizes& sizes, std::int64_t micro_batch);
  std::vector<std::uint32_t> outlined_as_;   ///< by choice: the one whose outlines it shares
  std::vector<Outlined> outlines_;           ///< by choice
  std::vector<std::array<Sizes, 2>> sizes_;  ///< by choice: with one micro-batch a step, with three or more
};

}  // namespace plimsoll
