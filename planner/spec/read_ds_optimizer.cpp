// Which optimizer does DeepSpeed build?  From Adam or AdamW (both are AdamW unless adam_w_mode is false):
//
//   torch_adam                 torch.optim.AdamW: fused, foreach or single as its arguments say, foreach by default on CUDA
//   else, optimizer offloaded  DeepSpeedCPUAdam
//   else                       FusedAdam
//
// Without the section the training code brings its own; accelerate turns a torch AdamW into DeepSpeedCPUAdam when the
// optimizer is offloaded, unless zero_force_ds_cpu_optimizer is false.  Source: DeepSpeed 0.19's runtime/engine.py
// (_configure_basic_optimizer).
#include "planner/spec/read_ds_optimizer.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>

#include "planner/base/format.hpp"
#include "planner/spec/ds_values.hpp"

namespace plimsoll {
namespace {

using Words = std::vector<std::string>;

const Words torch_arguments = {"lr",         "betas",      "eps",        "weight_decay",   "amsgrad",
                               "maximize",   "foreach",    "capturable", "differentiable", "fused",
                               "torch_adam", "adam_w_mode"};
const Words fused_adam_arguments = {"lr",      "bias_correction", "betas",       "eps",       "weight_decay",
                                    "amsgrad", "set_grad_none",   "adam_w_mode", "torch_adam"};
const Words cpu_adam_arguments = {"lr",      "bias_correction",       "betas",       "eps",       "weight_decay",
                                  "amsgrad", "fp32_optimizer_states", "adam_w_mode", "torch_adam"};

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

/// Arguments that the constructor does not take.
void check_arguments(const Node& params, const Words& known, const char* constructor, PlanDraft& draft) {
  if (!params.is_object()) return;
  for (const Node::Member& member : params.members()) {
    if (std::find(known.begin(), known.end(), member.key) != known.end()) continue;
    const bool for_torch =
        std::find(torch_arguments.begin(), torch_arguments.end(), member.key) != torch_arguments.end();
    const auto near = nearest(member.key, known);
    std::string help = member.key == "max_grad_norm" ? "write gradient_clipping at the top level"
                       : for_torch                   ? "add \"torch_adam\": true"
                       : near                        ? fmt::format("did you mean {}?", *near)
                                                     : "leave it out";
    draft.report(Severity::error, "ds.optimizer", member.value->key_place(),
                 fmt::format("{} is no argument of {}, whose constructor raises", member.value->pointer(), constructor),
                 std::move(help));
  }
}

OptimizerImplementation torch_kernels(const Node& params) {
  if (boolean_value(params.find("fused")).value_or(false)) return OptimizerImplementation::fused;
  if (!boolean_value(params.find("foreach")).value_or(true)) return OptimizerImplementation::single;
  return OptimizerImplementation::foreach;
}

/// The training code's own optimizer.
OptimizerImplementation client_optimizer(const Node& root, bool on_cpu, bool forces_cpu_adam, PlanDraft& draft) {
  if (!on_cpu) return OptimizerImplementation::fused;
  if (!forces_cpu_adam) return OptimizerImplementation::torch_cpu;
  draft.report(
      Severity::note, "ds.optimizer", root.place(),
      "no optimizer section, with the optimizer offloaded: accelerate turns a torch AdamW into DeepSpeedCPUAdam; "
      "without accelerate DeepSpeed raises for an optimizer that is not its own",
      "state the optimizer, or zero_force_ds_cpu_optimizer: false");
  return OptimizerImplementation::deepspeed_cpu;
}

/// At stage 0 the wrapper around FusedAdam keeps and casts flat buffers; the answer is that of torch's AdamW.
void warn_of_fused_wrapper(const Node& type, PlanDraft& draft) {
  if (draft.plan.zero.stage != 0 || draft.plan.precision == Precision::fp32) return;
  draft.report(
      Severity::warning, "ds.optimizer", type.place(),
      "at stage 0 DeepSpeed wraps its FusedAdam so that the step peaks at 24 bytes per parameter; the answer is that "
      "of torch's AdamW, 20 bytes",
      R"(write "torch_adam": true, "fused": true in optimizer.params)");
}

OptimizerImplementation built_optimizer(const Node& optimizer, bool on_cpu, bool forces_cpu_adam, PlanDraft& draft) {
  const Node* params = optimizer.find("params");
  const Node& type = *optimizer.find("type");
  const bool torch_adam = params != nullptr && boolean_value(params->find("torch_adam")).value_or(false);
  const Words& arguments = torch_adam ? torch_arguments : on_cpu ? cpu_adam_arguments : fused_adam_arguments;
  const char* constructor = torch_adam ? "torch.optim.AdamW" : on_cpu ? "DeepSpeedCPUAdam" : "FusedAdam";
  if (params != nullptr) check_arguments(*params, arguments, constructor, draft);
  if (!torch_adam) {
    if (!on_cpu) warn_of_fused_wrapper(type, draft);
    return on_cpu ? OptimizerImplementation::deepspeed_cpu : OptimizerImplementation::fused;
  }
  if (!on_cpu) return torch_kernels(*params);
  if (forces_cpu_adam)
    draft.report(Severity::warning, "ds.optimizer", params->find("torch_adam")->place(),
                 "torch's AdamW with the optimizer offloaded: DeepSpeed wants its own CPU optimizer",
                 "leave torch_adam out, or write zero_force_ds_cpu_optimizer: false");
  return OptimizerImplementation::torch_cpu;
}

}  // namespace

void read_ds_optimizer(const Node& root, PlanDraft& draft) {
  Plan& plan = draft.plan;
  const bool on_cpu = plan.offload.optimizer != OffloadDevice::none && plan.zero.stage > 0;
  const bool forces_cpu_adam = boolean_value(root.find("zero_force_ds_cpu_optimizer")).value_or(true);
  const Node* optimizer = root.find("optimizer");
  const Node* type = optimizer == nullptr ? nullptr : optimizer->find("type");
  const std::optional<std::string> name = text_value(type);
  OptimizerImplementation implementation = OptimizerImplementation::fused;
  if (!name) {
    implementation = client_optimizer(root, on_cpu, forces_cpu_adam, draft);
  } else if (const std::string adam = lower(*name); adam == "adam" || adam == "adamw") {
    const Node* mode = optimizer->find("params") == nullptr ? nullptr : optimizer->find("params")->find("adam_w_mode");
    const bool decoupled = adam == "adamw" || boolean_value(mode).value_or(true);
    if (adam == "adam" && decoupled)
      draft.report(Severity::note, "ds.optimizer", type->place(),
                   "DeepSpeed's Adam is AdamW unless adam_w_mode is false");
    if (draft.overridden.count("/optimizer/type") == 0) {
      plan.optimizer.type = decoupled ? "adamw" : "adam";
      draft.state("/optimizer/type", *type);
    }
    implementation = built_optimizer(*optimizer, on_cpu, forces_cpu_adam, draft);
  } else {
    draft.unsupported(type->place(), fmt::format("/optimizer/type is {}: not built yet", *name),
                      "answered: AdamW, Adam (two moments per parameter)");
  }
  if (draft.overridden.count("/optimizer/implementation") != 0) return;
  plan.optimizer.implementation = implementation;
  const Node* force = root.find("zero_force_ds_cpu_optimizer");
  const Node* decides = type != nullptr ? type : force != nullptr ? force : &root;
  draft.state("/optimizer/implementation", *decides);
}

}  // namespace plimsoll
