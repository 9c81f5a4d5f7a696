// Is this tensor's size the one that was printed?  And what a tensor of some kind is called in the program, and how it is
// made smaller (planner/cli/oom_decode.hpp).
#pragma once

#include <optional>
#include <string>

#include "planner/cli/oom_formulas.hpp"
#include "planner/step/program.hpp"

namespace plimsoll {

struct SizeMatch {
  double relative_error = 0;  ///< bytes / printed - 1, in the reading of the unit that is nearer
  double distance = 0;        ///< 0: the printed number itself, 1: at the end of what it may stand for
};

/// @param tolerance relative, of `bytes` itself
std::optional<SizeMatch> match_size(const OomMessage& message, double bytes, double tolerance);

/// The bytes that PyTorch's caching allocator asks the driver for, for a tensor of that size.
double segment_for(double bytes);

/// May a tensor of that kind be in that category of the ledger?
bool may_be(TensorKind kind, Category category);

/// Who allocates at the call that a traceback ends with: a layer its activations, an exchange what is gathered and reduced,
/// an optimizer or a checkpoint states; below autograd's engine, which calls C++ alone, are gradients and layers' tensors.
enum class Asker : std::uint8_t { unknown, layer, backward, exchange, states };
Asker asker_of(const OomMessage& message);

/// May that asker allocate a tensor of that kind, or of that category?
bool asks_for(Asker asker, TensorKind kind);
bool asks_for(Asker asker, Category category);

/// What makes tensors of a category smaller.
std::string remedy_for(Category category);

}  // namespace plimsoll
