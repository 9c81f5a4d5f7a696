// What does DeepSpeed look at before it steps?  Whether a gradient is infinite, how long they are together, and what they are
// to be divided by.  No temporary is as large as a gradient, but the norm's: it is computed on a copy in fp64, one gradient
// after the other.  Each answer that Python needs drains the GPU.
//
// Source: DeepSpeed 0.19.8 (has_inf_or_nan, get_grad_norm_direct, unscale_and_clip_grads); allocator and profiler traces of
// the optimizer phase, launch by launch.
#pragma once

#include <vector>

#include "planner/step/autograd/trace.hpp"

namespace plimsoll::deepspeed {

/// Are all values finite?  The largest and the smallest are, if so: two reductions and a dozen kernels on single values.
void check_finite(Trace& trace, const Tensor& gradient);
/// The norm of one gradient, a double on the device, by way of a copy in fp64.
Tensor gradient_norm(Trace& trace, const Tensor& gradient);
/// The norms of one group, joined to one number on the device in fp32: 4 bytes.
Tensor joined_norm(Trace& trace, const std::vector<Tensor>& norms);
/// Python branches on a value of the device.
void truth_test(Trace& trace, const char* role);
/// The flat fp32 gradient is multiplied by 1 / (loss scale x clipping), in place.
void unscale(Trace& trace, const Tensor& gradient);
/// Launches on single values.
void small_kernels(Trace& trace, int launches, const char* role);

}  // namespace plimsoll::deepspeed
