// Replicated training: plain PyTorch on one rank, under autocast or wholly in one type, and DistributedDataParallel on more
// (planner/step/engines/engines.hpp).
#include <optional>

#include "planner/step/autograd/ops.hpp"
#include "planner/step/engines/ddp_reducer.hpp"
#include "planner/step/engines/engines.hpp"
#include "planner/step/engines/torch_job.hpp"

namespace plimsoll {

namespace {

class DdpJob final : public TorchJob {
 public:
  using TorchJob::TorchJob;

 private:
  // Parameters in fp32 in module order (a tied head is made, then dropped), on the GPU or on the host; then moved or cast, or
  // both, one parameter at a time.
  void construct() override {
    trace_.begin_phase("initialized");
    Scoped category(trace_.category, Category::parameters);
    const bool host = plan().construction == Construction::cpu;
    const auto make = [&](const Shape& shape, const char* name, Category what) {
      return host ? trace_.host_empty(shape, DType::fp32, name, what, false)
                  : trace_.empty(shape, DType::fp32, name, what);
    };
    for (Parameter& parameter : model_->parameters_in_order) {
      if (parameter.adapter) continue;
      parameter.data = parameter.quantized ? quantized_weight(trace_, parameter)
                                           : make(parameter.shape, parameter.name, Category::parameters);
    }
    if (scenario_.model.tied_embeddings) {
      make(model_->embedding->shape, "tied head before it is dropped", Category::temporaries);
    }
    for (Parameter& parameter : model_->parameters_in_order) {
      if (parameter.adapter || parameter.quantized || (!host && parameter.dtype == DType::fp32)) continue;
      Tensor moved = trace_.empty(parameter.shape, parameter.dtype, parameter.name);
      if (host) {
        trace_.host_copy(parameter.data, moved, moved.bytes(), "move to the GPU");
      } else {
        ops::launch(trace_, KernelKind::vectorized, {&parameter.data}, moved, "cast parameter");
      }
      parameter.data = std::move(moved);
    }
    frequencies_ = rotary_frequencies(trace_, scenario_.model);
    if (plan().lora) attach_adapters(trace_, *model_, model_->parameters_in_order.front().dtype, plan().lora->fp32);
    if (plan().world_size > 1) wrap();
  }

  void wrap() {
    std::vector<Parameter*> parameters;
    for (Parameter& parameter : model_->parameters_in_order) {
      parameters.push_back(&parameter);
      parameter.on_gradient = [this](Parameter& owner, Tensor gradient) {
        keep_gradient(trace_, owner, std::move(gradient));
        reducer_->ready(owner);
      };
    }
    reducer_.emplace(trace_, parameters);
  }

  // Micro-batches before the last run under no_sync.
  void before_backward(bool boundary) override {
    if (!reducer_) return;
    reducer_->begin(boundary);
    autograd_.final_callbacks.emplace_back([this] { reducer_->finish(); });
  }

  void optimizer_step() override {
    std::vector<Tensor> tensors;
    std::vector<const Tensor*> gradients;
    for (Parameter& parameter : model_->parameters_in_order) {
      if (!parameter.trainable) continue;
      tensors.push_back(parameter.data);
      gradients.push_back(&parameter.grad);
    }
    if (plan().gradient_clipping > 0) clip_gradients(trace_, gradients);
    const bool fp32_adapters =
        plan().lora && tensors.front().dtype == DType::fp32 && plan().optimizer.moments != DType::int8;
    adamw_step(trace_, plan().optimizer.implementation, fp32_adapters ? DType::fp32 : plan().optimizer.moments, tensors,
               gradients, states_);
    for (Parameter& parameter : model_->parameters_in_order) parameter.grad = {};
    if (reducer_ && step_ == 0) reducer_->rebuild();  // PyTorch: when the next forward begins
  }

  std::vector<Tensor> frequencies_;
  std::optional<DdpReducer> reducer_;
  std::vector<AdamState> states_;
};

}  // namespace

void build_ddp(const Scenario& scenario, int rank, RankProgram& program) { DdpJob(scenario, rank, program).run(); }

}  // namespace plimsoll
