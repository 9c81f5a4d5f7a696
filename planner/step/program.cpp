// Names and derived quantities of the step program (planner/step/program.hpp).
#include "planner/step/program.hpp"

namespace plimsoll {

const char* name_of(Lane lane) {
  static constexpr const char* names[lane_count] = {"compute", "gather",   "reduce", "exchange",
                                                    "copy-in", "copy-out", "host"};
  return names[static_cast<std::size_t>(lane)];
}

const char* name_of(Category category) {
  static constexpr const char* names[category_count] = {
      "parameters",  "gradients",      "master_weights",  "optimizer_moments",     "gathered_parameters",
      "activations", "expert_buffers", "logits_and_loss", "communication_buckets", "temporaries",
      "workspace"};
  return names[static_cast<std::size_t>(category)];
}

const char* letter_of(Symbol symbol) {
  switch (symbol) {
    case Symbol::number: return "";
    case Symbol::tokens: return "N";
    case Symbol::batch: return "b";
    case Symbol::sequence: return "S";
    case Symbol::hidden: return "h";
    case Symbol::q_width: return "q";
    case Symbol::kv_width: return "kv";
    case Symbol::heads: return "A";
    case Symbol::kv_heads: return "K";
    case Symbol::head_dim: return "d";
    case Symbol::intermediate: return "I";
    case Symbol::vocab: return "V";
    case Symbol::experts: return "E";
    case Symbol::local_experts: return "El";
    case Symbol::rows: return "R";
    case Symbol::padded_rows: return "R'";
    case Symbol::capacity: return "C";
    case Symbol::top_k: return "k";
    case Symbol::parameters: return "P";
    case Symbol::bucket: return "B";
  }
  return "";
}

const char* name_of(KernelKind kind) {
  switch (kind) {
    case KernelKind::gemm: return "gemm";
    case KernelKind::grouped_gemm: return "grouped_gemm";
    case KernelKind::attention_forward: return "attention_forward";
    case KernelKind::attention_backward: return "attention_backward";
    case KernelKind::vectorized: return "vectorized";
    case KernelKind::silu: return "silu";
    case KernelKind::silu_backward: return "silu_backward";
    case KernelKind::fill: return "fill";
    case KernelKind::upcast: return "upcast";
    case KernelKind::upcast_fp64: return "upcast_fp64";
    case KernelKind::strided_neg: return "strided_neg";
    case KernelKind::strided_copy: return "strided_copy";
    case KernelKind::strided_add: return "strided_add";
    case KernelKind::strided_mul: return "strided_mul";
    case KernelKind::strided_accumulate: return "strided_accumulate";
    case KernelKind::broadcast_weight: return "broadcast_weight";
    case KernelKind::broadcast_row: return "broadcast_row";
    case KernelKind::expanded_divide: return "expanded_divide";
    case KernelKind::scalar_tensor_mul: return "scalar_tensor_mul";
    case KernelKind::mixed_mul: return "mixed_mul";
    case KernelKind::unscale: return "unscale";
    case KernelKind::concatenate: return "concatenate";
    case KernelKind::flat_copy: return "flat_copy";
    case KernelKind::reduce_last: return "reduce_last";
    case KernelKind::reduce_rows: return "reduce_rows";
    case KernelKind::reduce_norm: return "reduce_norm";
    case KernelKind::reduce_amax: return "reduce_amax";
    case KernelKind::log_softmax: return "log_softmax";
    case KernelKind::log_softmax_backward: return "log_softmax_backward";
    case KernelKind::softmax: return "softmax";
    case KernelKind::softmax_backward: return "softmax_backward";
    case KernelKind::gather_rows: return "gather_rows";
    case KernelKind::index_put: return "index_put";
    case KernelKind::index_put_backward: return "index_put_backward";
    case KernelKind::index_add: return "index_add";
    case KernelKind::fused_swiglu: return "fused_swiglu";
    case KernelKind::fused_swiglu_backward: return "fused_swiglu_backward";
    case KernelKind::fused_norm: return "fused_norm";
    case KernelKind::fused_norm_backward: return "fused_norm_backward";
    case KernelKind::fused_rotary: return "fused_rotary";
    case KernelKind::embedding_backward: return "embedding_backward";
    case KernelKind::token_cumsum: return "token_cumsum";
    case KernelKind::sort_pass: return "sort_pass";
    case KernelKind::topk: return "topk";
    case KernelKind::memset: return "memset";
    case KernelKind::small: return "small";
    case KernelKind::fsdp_copy_in: return "fsdp_copy_in";
    case KernelKind::fsdp_copy_in_cast: return "fsdp_copy_in_cast";
    case KernelKind::fsdp_copy_out: return "fsdp_copy_out";
    case KernelKind::chunk_concatenate: return "chunk_concatenate";
    case KernelKind::adamw: return "adamw";
    case KernelKind::adamw_pass: return "adamw_pass";
    case KernelKind::compiled_pointwise: return "compiled_pointwise";
  }
  return "";
}

const char* name_of(Routine routine) {
  switch (routine) {
    case Routine::none: return "none";
    case Routine::copy: return "copy";
    case Routine::add: return "add";
    case Routine::fill_zero: return "fill_zero";
    case Routine::product: return "product";
    case Routine::grouped_product: return "grouped_product";
    case Routine::embedding: return "embedding";
    case Routine::embedding_backward: return "embedding_backward";
    case Routine::norm: return "norm";
    case Routine::norm_backward: return "norm_backward";
    case Routine::rotary: return "rotary";
    case Routine::head_norm_rotary: return "head_norm_rotary";
    case Routine::head_norm_rotary_backward: return "head_norm_rotary_backward";
    case Routine::attention: return "attention";
    case Routine::attention_backward: return "attention_backward";
    case Routine::swiglu: return "swiglu";
    case Routine::swiglu_backward: return "swiglu_backward";
    case Routine::cross_entropy: return "cross_entropy";
    case Routine::route: return "route";
    case Routine::route_backward: return "route_backward";
    case Routine::scatter_rows: return "scatter_rows";
    case Routine::regroup: return "regroup";
    case Routine::gather_rows: return "gather_rows";
    case Routine::accumulate: return "accumulate";
    case Routine::adamw: return "adamw";
  }
  return "";
}

const char* name_of(HostWorkKind kind) {
  switch (kind) {
    case HostWorkKind::fsdp_forward_hook: return "fsdp_forward_hook";
    case HostWorkKind::fsdp_backward_hook: return "fsdp_backward_hook";
    case HostWorkKind::zero3_module_hook: return "zero3_module_hook";
    case HostWorkKind::zero3_parameter: return "zero3_parameter";
    case HostWorkKind::collective_issue: return "collective_issue";
    case HostWorkKind::accumulate_grad: return "accumulate_grad";
    case HostWorkKind::zero_grad_hook: return "zero_grad_hook";
    case HostWorkKind::zero3_grad_hook: return "zero3_grad_hook";
    case HostWorkKind::optimizer_parameter: return "optimizer_parameter";
    case HostWorkKind::cpu_adam: return "cpu_adam";
    case HostWorkKind::routing_counts: return "routing_counts";
    case HostWorkKind::python: return "python";
  }
  return "";
}

Flops Kernel::flops() const {
  const auto product =
      static_cast<double>(batch) * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  switch (kind) {
    case KernelKind::gemm: return Flops(2 * product);
    case KernelKind::grouped_gemm: return Flops(2 * product / static_cast<double>(batch));
    // q k^T and (softmax) v, each 2 m n k, on the causal half; backward has five such products.
    case KernelKind::attention_forward: return Flops(2 * product);
    case KernelKind::attention_backward: return Flops(5 * product);
    default: return Flops(0);
  }
}

}  // namespace plimsoll
