// Which micro-batch and accumulation does DeepSpeed derive from a ds_config.json?
//
//   train_batch_size B = train_micro_batch_size_per_gpu m * gradient_accumulation_steps g * ranks W
//
// Of B, m, g the missing ones are inferred by whole-number division, then the equation is asserted (DeepSpeed 0.19,
// runtime/config.py: _set_batch_related_parameters, _batch_assertion).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace plimsoll {

struct BatchSizes {
  std::optional<std::int64_t> train;         ///< B
  std::optional<std::int64_t> micro;         ///< m
  std::optional<std::int64_t> accumulation;  ///< g
};

struct BatchAnswer {
  std::int64_t micro = 1;
  std::int64_t accumulation = 1;
  std::string error;  ///< in DeepSpeed's words; empty: the equation holds
  std::string help;   ///< legal values
};

BatchAnswer solve_batch(const BatchSizes& stated, std::int64_t world);

/// "1, 2, 4, 8": the divisors of a number, in order, at most `limit` of them.
std::string divisors_in_words(std::int64_t number, std::size_t limit = 24);

}  // namespace plimsoll
