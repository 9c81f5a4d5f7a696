// What ran on a GPU in a measured step?  The kernels of a profiler trace (torch.profiler's Chrome JSON with CUDA activities,
// plain or compressed by gzip), each put into a class by its name; and the same classes for the kernels of a program.
//
// The classes are those whose kernels run at like rates: a template of PyTorch (vectorized, unrolled, strided elementwise,
// reductions, multi-tensor copies), a library (cuBLASLt's nvjet, CUTLASS, cuDNN, NCCL), or an algorithm (sort, top k, Adam).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "planner/base/diagnostic.hpp"
#include "planner/step/program.hpp"

namespace plimsoll {

enum class OpClass : std::uint8_t {
  gemm,  ///< with the memsets that cuBLAS launches before its kernels
  grouped_gemm,
  attention,
  strided,     ///< elementwise over views and broadcasts, unvectorised concatenation
  contiguous,  ///< vectorised elementwise and copies
  upcast,
  sharding,  ///< FSDP2's copies into and out of its flat buffers
  adamw,
  loss,
  reduction,
  routing,  ///< gathers, scatters, sorts, top k, embedding
  small,
  all_gather,
  reduce_scatter,
  all_reduce,
  all_to_all,
  broadcast
};
inline constexpr int op_class_count = static_cast<int>(OpClass::broadcast) + 1;
const char* name_of(OpClass op_class);
inline bool is_collective(OpClass op_class) { return op_class >= OpClass::all_gather; }

/// @param kernel the demangled name of a kernel, memset or memcpy, as CUPTI gives it
OpClass class_of(std::string_view kernel);
OpClass class_of(const Kernel& kernel);
OpClass class_of(CollectiveKind kind);

struct ProfiledKernel {
  OpClass op_class = OpClass::small;
  double start_us = 0, end_us = 0;
};

struct ProfilerTrace {
  std::string name;                     ///< of the file
  std::vector<ProfiledKernel> kernels;  ///< in order of their starts
  int world_size = 0;                   ///< 0: the trace does not say
};

/// Reads as a stream of JSON events: nothing but the kernels is kept of a trace.
/// Errors: kineto.json (with the place where it breaks off), kineto.form (no traceEvents), kineto.event (a kernel without
/// times), kineto.empty (no kernels: no CUDA activities).
Result<ProfilerTrace> read_profiler_trace(const std::shared_ptr<const SourceFile>& file);

}  // namespace plimsoll
