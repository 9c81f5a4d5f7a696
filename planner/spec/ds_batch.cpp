// Which micro-batch and accumulation does DeepSpeed derive?  Its inference and its assertions, in its order and words.
#include "planner/spec/ds_batch.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

namespace plimsoll {
namespace {

/// The three numbers as DeepSpeed completes them.
struct Completed {
  std::int64_t train, micro, accumulation;
};

std::optional<Completed> complete(const BatchSizes& stated, std::int64_t world) {
  const auto& [train, micro, accumulation] = stated;
  if (train && micro && accumulation) return Completed{*train, *micro, *accumulation};
  if (train && micro) return Completed{*train, *micro, *micro == 0 ? 0 : *train / *micro / world};
  if (train && accumulation)
    return Completed{*train, *accumulation == 0 ? 0 : *train / world / *accumulation, *accumulation};
  if (micro && accumulation) return Completed{*micro * *accumulation * world, *micro, *accumulation};
  if (train) return Completed{*train, *train / world, 1};
  if (micro) return Completed{*micro * world, *micro, 1};
  return std::nullopt;
}

/// What would make the equation hold, one number changed at a time.
std::string legal_batches(const Completed& sizes, const BatchSizes& stated, std::int64_t world) {
  const auto factor = [](const std::optional<std::int64_t>& size) {
    return std::max<std::int64_t>(size.value_or(1), 1);
  };
  const std::int64_t unit = factor(stated.micro) * factor(stated.accumulation) * world;
  if (stated.micro && stated.accumulation)
    return fmt::format("with these other sizes train_batch_size must be {} x {} x {} = {}", sizes.micro,
                       sizes.accumulation, world, unit);
  const char* other = stated.micro          ? "train_micro_batch_size_per_gpu x world_size"
                      : stated.accumulation ? "gradient_accumulation_steps x world_size"
                                            : "world_size";
  std::string text = fmt::format("train_batch_size must be a multiple of {} = {}", other, unit);
  const std::int64_t below = sizes.train / unit * unit;
  if (below > 0)
    text += fmt::format("; nearest: {} and {}", below, below + unit);
  else
    text += fmt::format("; the least is {}", unit);
  return text;
}

}  // namespace

std::string divisors_in_words(std::int64_t number, std::size_t limit) {
  std::vector<std::int64_t> low, high;
  for (std::int64_t divisor = 1; divisor * divisor <= number; ++divisor) {
    if (number % divisor != 0) continue;
    low.push_back(divisor);
    if (divisor != number / divisor) high.push_back(number / divisor);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  std::string text;
  for (std::size_t i = 0; i < low.size() && i < limit; ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", low[i]);
  if (low.size() > limit) text += ", ...";
  return text;
}

BatchAnswer solve_batch(const BatchSizes& stated, std::int64_t world) {
  BatchAnswer answer;
  const std::optional<Completed> sizes = complete(stated, world);
  if (!sizes) {
    answer.error = "Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided";
    answer.help = "write train_micro_batch_size_per_gpu";
    return answer;
  }
  const auto positive = [&](const char* name, std::int64_t value) {
    if (value > 0 || !answer.error.empty()) return;
    answer.error = fmt::format("{}: {} has to be greater than 0", name, value);
    answer.help = legal_batches(*sizes, stated, world);
  };
  positive("Train batch size", sizes->train);
  positive("Micro batch size per gpu", sizes->micro);
  positive("Gradient accumulation steps", sizes->accumulation);
  if (answer.error.empty() && sizes->train != sizes->micro * sizes->accumulation * world) {
    answer.error = fmt::format(
        "Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * "
        "world_size {} != {} * {} * {}",
        sizes->train, sizes->micro, sizes->accumulation, world);
    answer.help = legal_batches(*sizes, stated, world);
  }
  if (answer.error.empty()) answer = {sizes->micro, sizes->accumulation, {}, {}};
  return answer;
}

}  // namespace plimsoll
