// What happens to flat shards: sums, norm, AdamW (runtime/host/kernels.hpp).
#include <cstring>

#include "runtime/core/number.hpp"
#include "runtime/host/kernels.hpp"

namespace plimsoll::host {

void copy(const Operation& op) {
  std::memcpy(op.writes[0].data, op.reads[0].data,
              static_cast<std::size_t>(op.call().sizes[0] * size_of(op.reads[0].dtype)));
}

void fill_zero(const Operation& op) {
  std::memset(op.writes[0].data, 0, static_cast<std::size_t>(op.call().sizes[0] * size_of(op.writes[0].dtype)));
}

void accumulate(const Operation& op) {
  const auto [n, first, parts, counts, b, c, d] = op.call().sizes;
  const Operand& shard = op.writes[0];
  double squares = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    double sum = first != 0 ? 0 : number_at(shard.data, shard.dtype, i);
    for (std::int64_t part = 0; part < parts; ++part) {
      const Operand& from = op.reads[static_cast<std::size_t>(part)];
      sum += number_at(from.data, from.dtype, i);
    }
    set_number(shard.data, shard.dtype, i, sum);
    const double stored = number_at(shard.data, shard.dtype, i);
    squares += stored * stored;
  }
  if (counts == 0) return;
  const Operand& report = op.writes[1];
  const double before = number_at(report.data, report.dtype, report_slot::squared_norm);
  set_number(report.data, report.dtype, report_slot::squared_norm, before + squares * op.call().scalars[0]);
}

// g clipped by min(1, clip / (norm + 1e-6)); m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2;
// w = w (1 - lr decay) - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)      (PyTorch's AdamW and clip_grad_norm_)
void adamw(const Operation& op, const Hyperparameters& h) {
  const auto [n, has_master, clears, b, c, d, e] = op.call().sizes;
  const double clip = op.call().scalars[0];
  const Operand &gradient = op.reads[0], &master = op.writes[0], &first = op.writes[1], &second = op.writes[2],
                &weights = op.writes[3];
  const double norm = std::sqrt(number_at(op.reads[4].data, DType::fp32, report_slot::squared_norm));
  const double factor = clip > 0 && norm > clip ? clip / (norm + 1e-6) : 1.0;
  const double t = static_cast<double>(h.update);
  const double correct1 = 1 - std::pow(h.beta1, t), correct2 = 1 - std::pow(h.beta2, t);
  for (std::int64_t i = 0; i < n && std::isfinite(norm); ++i) {
    const double g = number_at(gradient.data, gradient.dtype, i) * factor;
    const double m = h.beta1 * number_at(first.data, first.dtype, i) + (1 - h.beta1) * g;
    const double v = h.beta2 * number_at(second.data, second.dtype, i) + (1 - h.beta2) * g * g;
    double w = number_at(master.data, master.dtype, i) * (1 - h.learning_rate * h.weight_decay);
    w -= h.learning_rate * (m / correct1) / (std::sqrt(v / correct2) + h.epsilon);
    set_number(first.data, first.dtype, i, m);
    set_number(second.data, second.dtype, i, v);
    set_number(master.data, master.dtype, i, w);
    if (has_master) set_number(weights.data, weights.dtype, i, number_at(master.data, master.dtype, i));
  }
  if (clears != 0) std::memset(gradient.data, 0, static_cast<std::size_t>(n * size_of(gradient.dtype)));
}

}  // namespace plimsoll::host
