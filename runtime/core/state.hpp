// What does a job remember between steps?  Weights (the fp32 master where there is one) and Adam's moments, as flat shards.
// Initial values, checkpoints and comparisons reach them by the parameter's name and the element's index in the whole
// parameter, so that they do not depend on how ranks share it.
#pragma once

#include <functional>
#include <string>

#include "runtime/core/execute_step.hpp"

namespace plimsoll {

enum class StateKind : std::uint8_t { weights, first_moment, second_moment, gradient };

/// A run of elements of one parameter that this rank's shard holds.
struct ShardPiece {
  const FlatGroup& group;
  const ParameterSlot& slot;
  std::int64_t in_shard = 0;  ///< of its first element
  std::int64_t first = 0;     ///< index of that element in the whole parameter
  std::int64_t numel = 0;
};

/// Every piece of every shard of this rank, in order.
void for_each_piece(const RankProgram& rank, const std::function<void(const ShardPiece&)>& visit);

/// Shards as fp32, read from the device and written to it.
std::vector<float> read_shard(Execution& execution, const FlatGroup& group, StateKind kind);
void write_shard(Execution& execution, const FlatGroup& group, StateKind kind, std::span<const float> values);

/// Values of a parameter before training, from the element `first` on: normal of the given deviation, or 1 where it is 0.  Each
/// is a function of seed, name and index alone, so that neither ranks nor threads matter.
void initial_values(std::uint64_t seed, std::string_view name, double deviation, std::int64_t first,
                    std::span<float> values);

/// Fills weights, masters and moments; gradients become 0.
void initialise(Execution& execution, std::uint64_t seed);

/// Gives the values of a parameter from the element `first` on; called by several threads at once.
using ValuesOf = std::function<void(const ParameterSlot&, std::int64_t first, std::span<float> values)>;
/// Fills weights and masters; moments and gradients become 0.
void set_weights(Execution& execution, const ValuesOf& values_of);

}  // namespace plimsoll
