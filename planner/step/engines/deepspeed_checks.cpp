// Finite checks, norms and clipping (planner/step/engines/deepspeed_checks.hpp).
#include "planner/step/engines/deepspeed_checks.hpp"

namespace plimsoll::deepspeed {

void small_kernels(Trace& trace, int launches, const char* role) {
  Kernel kernel = Kernel::pointwise(KernelKind::small, DType::fp32, 1, Bytes(4));
  kernel.launches = static_cast<std::uint16_t>(launches);
  trace.compute(kernel, {}, {}, role);
}

void check_finite(Trace& trace, const Tensor& gradient) {
  Scoped category(trace.category, Category::temporaries);
  const Kernel reduction =
      Kernel::pointwise(KernelKind::reduce_amax, gradient.dtype, gradient.numel(), gradient.bytes());
  for (const char* role : {"largest value of a gradient", "smallest value of a gradient"}) {
    const Tensor value = trace.empty({}, gradient.dtype, role);
    trace.compute(reduction, {&gradient}, {&value}, role);
    small_kernels(trace, 4, "is it finite");
  }
  small_kernels(trace, 3, "is it finite");
}

Tensor gradient_norm(Trace& trace, const Tensor& gradient) {
  Scoped category(trace.category, Category::temporaries);
  const std::int64_t n = gradient.numel();
  const Tensor wide = trace.empty(gradient.shape, DType::fp64, "gradient in fp64");
  trace.compute(Kernel::pointwise(KernelKind::upcast_fp64, DType::fp64, n, gradient.bytes() + wide.bytes()),
                {&gradient}, {&wide}, "gradient in fp64");
  Tensor norm = trace.empty({}, DType::fp64, "gradient norm");
  trace.compute(Kernel::pointwise(KernelKind::reduce_norm, DType::fp64, n, wide.bytes()), {&wide}, {&norm},
                "gradient norm");
  return norm;
}

Tensor joined_norm(Trace& trace, const std::vector<Tensor>& norms) {
  Scoped category(trace.category, Category::temporaries);
  const auto count = static_cast<std::int64_t>(norms.size());
  const Tensor stacked = trace.empty({{count}}, DType::fp64, "stacked gradient norms");
  const Tensor squares = trace.empty({{count}}, DType::fp64, "squares of gradient norms");
  small_kernels(trace, 3, "norm of a group");
  Tensor joined = trace.empty({}, DType::fp32, "norm of a group");
  small_kernels(trace, 1, "norm of a group");
  return joined;
}

void truth_test(Trace& trace, const char* role) {
  small_kernels(trace, 7, role);
  trace.record(HostSync{Lane::compute}, Lane::host, {}, {}, role);
}

void unscale(Trace& trace, const Tensor& gradient) {
  small_kernels(trace, 7, "scale of the gradients");
  trace.compute(Kernel::pointwise(KernelKind::unscale, gradient.dtype, gradient.numel(), gradient.bytes() * 2),
                {&gradient}, {&gradient}, "unscale gradients");
}

}  // namespace plimsoll::deepspeed
