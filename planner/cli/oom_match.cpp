// Sizes as they are printed (planner/cli/oom_match.hpp).
#include "planner/cli/oom_match.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace plimsoll {
namespace {

constexpr double mebi = 1 << 20;

/// Where a size was printed to the byte, what a framework's own padding may add.
constexpr double exact_share = 1e-5;

std::optional<SizeMatch> match_reading(double printed, double half, double actual, double bytes, double tolerance) {
  const double reach = std::max(half, exact_share * printed) * (1 + 1e-9) + tolerance * bytes;
  const double off = std::abs(actual - printed);
  if (printed <= 0 || off > reach) return std::nullopt;
  return SizeMatch{bytes / printed - 1, off / reach};
}

}  // namespace

double segment_for(double bytes) {
  if (bytes <= mebi) return 2 * mebi;
  if (bytes < 10 * mebi) return 20 * mebi;
  return std::ceil(bytes / (2 * mebi)) * 2 * mebi;
}

std::optional<SizeMatch> match_size(const OomMessage& message, double bytes, double tolerance) {
  const PrintedSize& printed = message.requested;
  std::array<double, 2> actual = {bytes, bytes};
  // Smaller tensors hide behind the pool's own segments; they are told as such.
  if (message.whole_segments && bytes >= 10 * mebi) actual[1] = segment_for(bytes);
  if (message.on_host) actual[1] = std::exp2(std::ceil(std::log2(std::max(1.0, bytes))));
  std::optional<SizeMatch> best;
  for (const double one : actual) {
    for (const double reading : {printed.bytes, printed.otherwise}) {
      const double half = printed.half * reading / printed.bytes;
      const auto match = match_reading(reading, half, one, bytes, tolerance);
      if (match && (!best || match->distance < best->distance)) best = match;
    }
  }
  return best;
}

bool may_be(TensorKind kind, Category category) {
  switch (kind) {
    case TensorKind::shard:
    case TensorKind::whole:
      return category == Category::master_weights || category == Category::optimizer_moments ||
             category == Category::gradients || category == Category::temporaries || category == Category::parameters;
    case TensorKind::flat:
      return category == Category::parameters || category == Category::temporaries ||
             category == Category::gathered_parameters;
    case TensorKind::gathered:
      return category == Category::gathered_parameters || category == Category::parameters ||
             category == Category::temporaries || category == Category::gradients;
    case TensorKind::bucket:
      return category == Category::communication_buckets || category == Category::gathered_parameters ||
             category == Category::temporaries;
    case TensorKind::logits: return category == Category::logits_and_loss;
    case TensorKind::attention: return category == Category::activations || category == Category::temporaries;
    case TensorKind::activation:
      return category == Category::activations || category == Category::expert_buffers ||
             category == Category::temporaries;
  }
  return false;
}

Asker asker_of(const OomMessage& message) {
  if (!message.innermost) return Asker::unknown;
  switch (*message.innermost) {
    case Hint::head:
    case Hint::logits:
    case Hint::attention:
    case Hint::heads:
    case Hint::mask:
    case Hint::experts:
    case Hint::mlp:
    case Hint::projection:
    case Hint::norm: return Asker::layer;
    case Hint::flatten:
    case Hint::gather:
    case Hint::reduce: return Asker::exchange;
    case Hint::optimizer:
    case Hint::state_dict:
    case Hint::loading: return Asker::states;
    case Hint::backward: return Asker::backward;
    case Hint::embedding: return Asker::unknown;  // its construction, or its rows
  }
  return Asker::unknown;
}

bool asks_for(Asker asker, TensorKind kind) {
  const bool of_layers = kind == TensorKind::logits || kind == TensorKind::attention || kind == TensorKind::activation;
  switch (asker) {
    case Asker::unknown: return true;
    case Asker::layer:
    case Asker::backward: return of_layers || kind == TensorKind::whole;
    case Asker::exchange: return !of_layers;
    case Asker::states: return !of_layers;
  }
  return true;
}

bool asks_for(Asker asker, Category category) {
  const bool of_layers = category == Category::activations || category == Category::expert_buffers ||
                         category == Category::logits_and_loss;
  const bool of_exchange = category == Category::gathered_parameters || category == Category::communication_buckets;
  if (category == Category::temporaries || category == Category::workspace) return true;
  switch (asker) {
    case Asker::unknown: return true;
    case Asker::layer: return of_layers || category == Category::parameters;  // autocast's copies of weights
    case Asker::backward: return of_layers || category == Category::gradients;
    case Asker::exchange: return of_exchange || category == Category::gradients || category == Category::parameters;
    case Asker::states: return !of_layers && !of_exchange;
  }
  return true;
}

std::string remedy_for(Category category) {
  switch (category) {
    case Category::parameters: return "zero.stage=3, or a larger expert_parallel";
    case Category::gradients: return "zero.stage=2 or higher, or gradient_dtype=bf16";
    case Category::master_weights:
    case Category::optimizer_moments: return "more GPUs to shard over, or offload.optimizer=cpu";
    case Category::gathered_parameters: return "a lower zero.stage3_max_live_parameters, or fewer bytes beside it";
    case Category::activations:
    case Category::expert_buffers: return "half the micro_batch, or recompute=full";
    case Category::logits_and_loss: return "loss={\"chunked\": 1024}, or half the micro_batch";
    case Category::communication_buckets: return "a smaller zero.reduce_bucket_size";
    case Category::temporaries:
      return "half the micro_batch where it is of an activation; else a smaller zero.sub_group_size";
    case Category::workspace: return "a smaller CUBLAS_WORKSPACE_CONFIG";
  }
  return {};
}

}  // namespace plimsoll
