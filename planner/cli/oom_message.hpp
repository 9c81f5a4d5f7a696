// What does an out-of-memory message say?  How much was asked for, and what of the memory was taken by whom, in the wordings
// of PyTorch (CUDA, HIP, XPU, NPU, MPS, CPU), DeepSpeed, XLA and NumPy.
//
// A printed size stands for a range: half a unit of its last digit to either side.  "GB" is taken as 10^9 and, since PyTorch
// prints binary sizes under that name in places, as 2^30 too.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/base/diagnostic.hpp"
#include "planner/base/quantity.hpp"

namespace plimsoll {

/// A size as it was printed.
struct PrintedSize {
  std::string text;      ///< "12.94 GiB"
  double bytes = 0;      ///< in the first reading of its unit
  double half = 0;       ///< half a unit of the last digit, in bytes
  double otherwise = 0;  ///< in the second reading of its unit; 0: there is none
};

/// What the lines around the message tell about who asked (names of functions in a traceback).
enum class Hint : std::uint8_t {
  head,       ///< the output head's product
  logits,     ///< cross_entropy, log_softmax
  attention,  ///< eager attention, softmax of scores
  heads,      ///< queries, keys, values: rotation, repetition, fused attention
  mask,
  optimizer,  ///< states, masters, a step
  flatten,    ///< flattening of parameters
  gather,     ///< all-gather
  reduce,     ///< reduce-scatter, buckets
  experts,    ///< MoE layers
  mlp,
  projection,  ///< q_proj, query_key_value, c_attn
  norm,
  embedding,
  backward,    ///< autograd's engine, which calls C++ alone
  state_dict,  ///< copies of named weights
  loading,     ///< checkpoints, safetensors
};

struct OomMessage {
  PrintedSize requested;
  std::optional<PrintedSize> capacity, allocated, reserved, reserved_unused, free;
  bool on_host = false;        ///< an allocator of the CPU: sizes are exact, pinned ones powers of two
  bool whole_segments = true;  ///< the size is that of a new segment of PyTorch's pool
  std::vector<Hint> hints;
  /// The hint that is named last: a traceback ends with the call that asked.
  std::optional<Hint> innermost;

  bool has(Hint hint) const;
};

/// @param file a line, or a log that holds one; of several messages the first counts
/// Errors: oom.none (no size that was asked for), oom.small, oom.large.
Result<OomMessage> read_oom_message(const std::shared_ptr<const SourceFile>& file);

}  // namespace plimsoll
