// How large may an input be?  Every number of a file is bounded when it is read, and the products that the step program
// forms are bounded once per scenario (planner/spec/legality.cpp), so that no count of bytes leaves int64.  The bounds lie
// far beyond what anybody trains: a million GPUs, a sequence of 128 million tokens, a thousand trillion parameters.
#pragma once

#include <cstdint>

namespace plimsoll::limits {

inline constexpr std::int64_t world = std::int64_t{1} << 20;                  ///< ranks
inline constexpr std::int64_t micro_batch = std::int64_t{1} << 20;            ///< sequences
inline constexpr std::int64_t sequence = std::int64_t{1} << 27;               ///< tokens
inline constexpr std::int64_t tokens = std::int64_t{1} << 30;                 ///< micro_batch * sequence
inline constexpr std::int64_t gradient_accumulation = std::int64_t{1} << 12;  ///< micro-batches per optimizer step
inline constexpr std::int64_t layer_micro_batches = std::int64_t{1} << 17;    ///< layers * gradient_accumulation
inline constexpr std::int64_t loss_chunks = std::int64_t{1} << 13;            ///< parts of a micro-batch's loss
inline constexpr std::int64_t zero_elements = std::int64_t{1} << 50;          ///< ZeRO's buckets and thresholds
inline constexpr std::int64_t layers = std::int64_t{1} << 14;
inline constexpr std::int64_t width = std::int64_t{1} << 20;  ///< hidden, intermediate, heads x head dimension
inline constexpr std::int64_t heads = std::int64_t{1} << 16;
inline constexpr std::int64_t vocab = std::int64_t{1} << 24;
inline constexpr std::int64_t experts = std::int64_t{1} << 16;
inline constexpr std::int64_t parameters = std::int64_t{1} << 50;  ///< elements of the whole model
inline constexpr std::int64_t bytes = std::int64_t{1} << 60;       ///< of anything that is summed
/// Bytes or operations per second; at less a step would take longer than simulated time can be told, 106 days.
inline constexpr double lowest_rate = 1e6, highest_rate = 1e18;

}  // namespace plimsoll::limits
