// Which points does this model under this plan really use?  Read off the step program (calibrate/bench/catalogue.hpp), so that
// the shapes are those of the planner by construction.
#include <variant>

#include "calibrate/bench/catalogue.hpp"
#include "planner/step/program.hpp"

namespace plimsoll::calibrate {
namespace {

/// The layout by who issues the product: the forward pass, or which of its two gradients (the weight's contracts tokens).
const char* layout_of(const Op& op, const Kernel& kernel, std::int64_t tokens) {
  if (op.issuer == Issuer::forward) return "forward";
  return kernel.k == tokens ? "weight_gradient" : "input_gradient";
}

void add_kernel(std::vector<Case>& cases, const Op& op, const Kernel& kernel, std::int64_t tokens) {
  const std::string dtype = name_of(kernel.dtype);
  switch (kernel.kind) {
    case KernelKind::gemm:
      cases.push_back({{"gemm",
                        {{"layout", layout_of(op, kernel, tokens)}, {"dtype", dtype}},
                        {{"m", kernel.m * kernel.batch}, {"n", kernel.n}, {"k", kernel.k}}}});
      break;
    case KernelKind::grouped_gemm:
      cases.push_back({{"gemm_grouped",
                        {{"layout", "forward"}, {"dtype", dtype}},
                        {{"groups", kernel.batch}, {"m", kernel.m}, {"n", kernel.n}, {"k", kernel.k}}}});
      break;
    case KernelKind::attention_forward:
    case KernelKind::attention_backward:
      cases.push_back(
          {{"attention",
            {{"direction", kernel.kind == KernelKind::attention_forward ? "forward" : "backward"},
             {"dtype", dtype},
             {"library", "cudnn"}},
            {{"batch", kernel.batch}, {"kv_batch", kernel.batch}, {"length", kernel.m}, {"head_dim", kernel.k}}}});
      break;
    default: break;  // priced by elements and bytes: the grid's sizes serve them
  }
}

}  // namespace

std::vector<Case> program_cases(const StepProgram& program, int world, const std::string& tier) {
  std::vector<Case> cases;
  const std::int64_t tokens =
      program.tokens_per_step_per_rank / std::max<std::int64_t>(1, program.gradient_accumulation);
  for (const RankClass& ranks : program.classes) {
    const RankProgram& rank = ranks.program;
    for (OpId id = rank.steady_first; id < rank.steady_end; ++id) {
      const Op& op = rank.ops[id];
      if (const auto* compute = std::get_if<Compute>(&op.action)) {
        add_kernel(cases, op, rank.kernels[compute->kernel], tokens);
      } else if (const auto* collective = std::get_if<Collective>(&op.action)) {
        const Group& group = program.groups[collective->group];
        if (group.size < 2 || group.size * group.stride > world || collective->full_size.count < group.size) continue;
        const bool whole = group.size == world;
        const std::string name = whole ? "world" : std::to_string(group.size) + "x" + std::to_string(group.stride);
        cases.push_back({{"collective",
                          {{"op", name_of(collective->kind)},
                           {"dtype", name_of(collective->dtype)},
                           {"group", name},
                           {"tier", tier}},
                          {{"bytes", collective->full_size.count}, {"ranks", group.size}}},
                         0,
                         true});
      }
    }
  }
  return cases;
}

}  // namespace plimsoll::calibrate
