// Slices, splits, copies into parts and simple arithmetic, as PyTorch runs them.  Same rules as planner/step/autograd/ops.hpp.
#pragma once

#include <array>

#include "planner/step/autograd/ops.hpp"

namespace plimsoll::ops {

/// Part of x, a view of shape `part`; its gradient is a full tensor of zeros with the part copied in.
Variable slice(Autograd& g, const Variable& x, const Shape& part);
/// Two parts of the last dimension, as views; backward joins their gradients.
std::array<Variable, 2> split_last(Autograd& g, const Variable& x, const Shape& first, const Shape& second);
/// x repeated along one dimension without a copy; the gradient is summed back.
Variable expand(Autograd& g, const Variable& x, const Shape& wide);
/// target[part] = x.  Autograd remembers the assignment as a node over the whole target: backward copies its gradient, clones
/// the part, and hands the clone to x.
Variable copy_into(Autograd& g, const Variable& target, const Variable& x);
/// a - b of equal shape; b's gradient is negated.
Variable subtract(Autograd& g, const Variable& a, const Variable& b, const char* name);
/// x in a larger tensor whose last dimension is filled up with zeros; backward clones the gradient's part.
Variable pad_last(Autograd& g, const Variable& x, const Shape& wide, const char* name);
/// x in memory order, where it is a view in another one; the gradient passes through.
Variable contiguous(Autograd& g, const Variable& x, const char* name);

}  // namespace plimsoll::ops
