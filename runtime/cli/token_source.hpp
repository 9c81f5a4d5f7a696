// Where do the tokens come from?  A file, in order and again from its start; or made up.  Which tokens a micro-batch gets
// depends on its place in the global batch alone, not on how many ranks share it.
#pragma once

#include <memory>
#include <string>

#include "planner/base/diagnostic.hpp"
#include "runtime/core/execute_step.hpp"

namespace plimsoll {

class TokenSource {
 public:
  /// @param argument a text file, FILE.tokens (int32, little-endian), or "synthetic"
  /// @return errors: too short for one sequence, cut within a token, a token that the vocabulary does not have
  /// @throws MachineError if the file cannot be read
  static Result<TokenSource> open(const std::string& argument, const FeedLayout& layout, std::uint64_t seed);

  /// @param micro_batch its index among all of all ranks and steps
  MicroBatch batch(std::int64_t micro_batch) const;
  /// "3,412 tokens of FILE"
  const std::string& words() const { return words_; }

 private:
  FeedLayout layout_;
  std::uint64_t seed_ = 0;
  std::shared_ptr<const std::vector<std::int32_t>> tokens_;  ///< null: synthetic
  std::string words_;
};

}  // namespace plimsoll
