// Which tensors of a training step are large enough to be the one that no memory was left for?  A table of formulas over
// the sizes that are known (planner/cli/oom_sizes.hpp), for the cases where no step program can be built.  Sources: the
// layers, engines and optimizers as they are laid out by planner/step.
#pragma once

#include <string>
#include <vector>

#include "planner/cli/oom_message.hpp"
#include "planner/cli/oom_sizes.hpp"

namespace plimsoll {

/// What a tensor belongs to: it decides where it is likely.
enum class TensorKind : std::uint8_t {
  shard,     ///< a rank's part of a state: stages 1 to 3
  flat,      ///< all weights in one buffer: stages 1 and 2
  whole,     ///< an unsharded state
  gathered,  ///< weights put together from their shards
  bucket,    ///< of DeepSpeed
  logits,
  attention,  ///< of eager attention
  activation,
};

/// coefficient * product(over) / product(under) bytes; a letter may stand twice.
struct OomFormula {
  const char* tensor;
  double coefficient;
  std::vector<Letter> over, under;
  TensorKind kind;
  double prior;  ///< 0: the usual suspect; larger: less likely
  Hint hint;
  const char* remedy;
};

const std::vector<OomFormula>& oom_formulas();

/// "4*P/N"
std::string letters_of(const OomFormula& formula);

}  // namespace plimsoll
