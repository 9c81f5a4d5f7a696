// The class of a kernel, by its name in a trace or its kind in a program (planner/cli/profiler_trace.hpp).
#include <array>
#include <utility>

#include "planner/cli/profiler_trace.hpp"

namespace plimsoll {

namespace {

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

struct Rule {
  const char* part;
  OpClass op_class;
};

/// The first part that a name contains decides.
constexpr std::array collectives{
    Rule{"AllGather", OpClass::all_gather}, Rule{"ReduceScatter", OpClass::reduce_scatter},
    Rule{"AllReduce", OpClass::all_reduce}, Rule{"SendRecv", OpClass::all_to_all},
    Rule{"Broadcast", OpClass::broadcast},
};
constexpr std::array kernels{
    Rule{"Memcpy DtoD", OpClass::contiguous},
    Rule{"Memcpy", OpClass::small},
    Rule{"Memset", OpClass::gemm},
    Rule{"GroupProblemShape", OpClass::grouped_gemm},
    Rule{"GemmUniversal", OpClass::grouped_gemm},
    Rule{"grouped_gemm", OpClass::grouped_gemm},
    Rule{"nvjet", OpClass::gemm},
    Rule{"gemm", OpClass::gemm},
    Rule{"gemv", OpClass::gemm},
    Rule{"splitKreduce", OpClass::gemm},
    Rule{"cudnn", OpClass::attention},
    Rule{"fmha", OpClass::attention},
    Rule{"flash_", OpClass::attention},
    Rule{"Adam", OpClass::adamw},
    Rule{"chunk_cat", OpClass::sharding},
    Rule{"split_with_sizes", OpClass::sharding},
    Rule{"SoftMax", OpClass::loss},
    Rule{"softmax", OpClass::loss},
    Rule{"nll_loss", OpClass::loss},
    Rule{"CatArrayBatchedCopy_vectorized", OpClass::contiguous},
    Rule{"CatArrayBatchedCopy_alignedK", OpClass::contiguous},
    Rule{"CatArray", OpClass::strided},
    Rule{"multi_tensor_apply", OpClass::small},
    Rule{"reduce_kernel", OpClass::reduction},
    Rule{"unrolled_elementwise", OpClass::upcast},
    Rule{"vectorized_elementwise", OpClass::contiguous},
    Rule{"gather", OpClass::routing},
    Rule{"scatter", OpClass::routing},
    Rule{"index", OpClass::routing},
    Rule{"grad_weight", OpClass::routing},
    Rule{"ort", OpClass::routing},  // sort, RadixSort
    Rule{"topk", OpClass::routing},
    Rule{"TopK", OpClass::routing},
    Rule{"scan", OpClass::routing},
    Rule{"Scan", OpClass::routing},
    Rule{"unique", OpClass::routing},
    Rule{"istogram", OpClass::routing},
    Rule{"permute", OpClass::routing},
    Rule{"swiglu", OpClass::routing},
    Rule{"elementwise_kernel", OpClass::strided},
};

}  // namespace

const char* name_of(OpClass op_class) {
  switch (op_class) {
    case OpClass::gemm: return "gemm";
    case OpClass::grouped_gemm: return "grouped_gemm";
    case OpClass::attention: return "attention";
    case OpClass::strided: return "strided";
    case OpClass::contiguous: return "contiguous";
    case OpClass::upcast: return "upcast";
    case OpClass::sharding: return "sharding";
    case OpClass::adamw: return "adamw";
    case OpClass::loss: return "loss";
    case OpClass::reduction: return "reduction";
    case OpClass::routing: return "routing";
    case OpClass::small: return "small";
    case OpClass::all_gather: return "all_gather";
    case OpClass::reduce_scatter: return "reduce_scatter";
    case OpClass::all_reduce: return "all_reduce";
    case OpClass::all_to_all: return "all_to_all";
    case OpClass::broadcast: return "broadcast";
  }
  return "";
}

OpClass class_of(std::string_view kernel) {
  if (contains(kernel, "nccl")) {
    for (const Rule& rule : collectives) {
      if (contains(kernel, rule.part)) return rule.op_class;
    }
  }
  // FSDP2 copies many tensors in one launch; other multi-tensor launches are small.
  if (contains(kernel, "multi_tensor_apply") && contains(kernel, "Copy<")) return OpClass::sharding;
  for (const Rule& rule : kernels) {
    if (contains(kernel, rule.part)) return rule.op_class;
  }
  return OpClass::small;
}

OpClass class_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_gather: return OpClass::all_gather;
    case CollectiveKind::reduce_scatter: return OpClass::reduce_scatter;
    case CollectiveKind::all_reduce: return OpClass::all_reduce;
    case CollectiveKind::all_to_all: return OpClass::all_to_all;
    case CollectiveKind::broadcast: return OpClass::broadcast;
  }
  return OpClass::all_gather;
}

OpClass class_of(const Kernel& kernel) {
  switch (kernel.kind) {
    case KernelKind::grouped_gemm:  // without tensor cores a loop of products
      return kernel.dtype == DType::fp32 ? OpClass::gemm : OpClass::grouped_gemm;
    case KernelKind::gemm: return OpClass::gemm;
    case KernelKind::attention_forward:
    case KernelKind::attention_backward: return OpClass::attention;
    case KernelKind::vectorized:
    case KernelKind::silu:
    case KernelKind::silu_backward:
    case KernelKind::fill:
    case KernelKind::flat_copy:
    case KernelKind::fused_norm:
    case KernelKind::fused_norm_backward:
    case KernelKind::fused_rotary:
    case KernelKind::compiled_pointwise: return OpClass::contiguous;
    case KernelKind::upcast:
    case KernelKind::upcast_fp64: return OpClass::upcast;
    case KernelKind::strided_neg:
    case KernelKind::strided_copy:
    case KernelKind::strided_add:
    case KernelKind::strided_mul:
    case KernelKind::strided_accumulate:
    case KernelKind::broadcast_weight:
    case KernelKind::broadcast_row:
    case KernelKind::expanded_divide:
    case KernelKind::scalar_tensor_mul:
    case KernelKind::mixed_mul:
    case KernelKind::unscale:
    case KernelKind::concatenate: return OpClass::strided;
    case KernelKind::reduce_last:
    case KernelKind::reduce_rows:
    case KernelKind::reduce_norm:
    case KernelKind::reduce_amax: return OpClass::reduction;
    case KernelKind::log_softmax:
    case KernelKind::log_softmax_backward:
    case KernelKind::softmax:
    case KernelKind::softmax_backward: return OpClass::loss;
    case KernelKind::gather_rows:
    case KernelKind::index_put:
    case KernelKind::index_put_backward:
    case KernelKind::index_add:
    case KernelKind::fused_swiglu:
    case KernelKind::fused_swiglu_backward:
    case KernelKind::embedding_backward:
    case KernelKind::token_cumsum:
    case KernelKind::sort_pass:
    case KernelKind::topk: return OpClass::routing;
    case KernelKind::fsdp_copy_in:
    case KernelKind::fsdp_copy_in_cast:
    case KernelKind::fsdp_copy_out:
    case KernelKind::chunk_concatenate: return OpClass::sharding;
    case KernelKind::adamw:
    case KernelKind::adamw_pass: return OpClass::adamw;
    case KernelKind::memset:
    case KernelKind::small: return OpClass::small;
  }
  return OpClass::small;
}

}  // namespace plimsoll
