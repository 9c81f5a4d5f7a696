// What does every engine's job have in common?  Build the model, a first step, a steady step; a step is forward and backward
// of each micro-batch, then the optimizer.  An engine says what happens at each of these points.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "planner/step/layers/layers.hpp"

namespace plimsoll {

/// One rank's job, traced.  Engines derive from it.
class TorchJob {
 public:
  TorchJob(const Scenario& scenario, int rank, RankProgram& program);
  virtual ~TorchJob() = default;
  TorchJob(const TorchJob&) = delete;
  TorchJob& operator=(const TorchJob&) = delete;

  /// Traces the whole job into the program.
  void run();

 protected:
  /// Phases "model_built" and "initialized".
  virtual void construct() = 0;
  virtual void before_forward(bool /*first_micro_batch*/) {}
  /// model.forward with labels; Hugging Face's modules unless an engine has its own layers.
  virtual Variable run_forward(const Variable& ids);
  /// After model.forward returned, while its outputs are still held.
  virtual void after_forward() {}
  virtual void before_backward(bool /*boundary*/) {}
  virtual void after_backward(bool /*boundary*/) {}
  /// Between the first and the last micro-batch of a step, the first one that all later ones are like.
  virtual std::int64_t first_alike() const { return 1; }
  virtual void optimizer_step() = 0;
  /// Saving, if this engine's saving is modelled.
  virtual void save() {}

  const Plan& plan() const { return scenario_.plan; }
  /// The mesh over which a parameter is sharded: all data-parallel ranks, or the expert-data-parallel ones.
  int mesh_size(const Parameter& parameter) const;

  const Scenario& scenario_;
  const int rank_;
  RankProgram& program_;
  Trace trace_;
  Autograd autograd_;
  std::unique_ptr<TorchModel> model_;
  LayerContext layers_;
  int step_ = 0;

  /// The caller's input ids, and its loss with what its graph still holds, live until the function that made the step has
  /// returned.
  void forget_last_step();

 private:
  Variable ids_;  // of the last micro-batch

  void step(bool steady);
  std::size_t traced_micro_batches() const;
  void micro_batch(std::int64_t index, const char* forward_phase, const char* backward_phase);
};

/// Adam's state of one tensor: its moments (and, fused, a step counter on the device); in 8 bits each moment has a scale.
struct AdamState {
  Tensor step, first, second, first_scale = {}, second_scale = {};
};

/// The optimizer over `tensors` with `gradients`: creates missing states in order, then updates in place.
/// @param implementation fused: no temporaries; foreach: one list of square roots for all tensors; single: one at a time
void adamw_step(Trace& trace, OptimizerImplementation implementation, DType moments, const std::vector<Tensor>& tensors,
                const std::vector<const Tensor*>& gradients, std::vector<AdamState>& states);

/// torch.nn.utils.clip_grad_norm_: a norm per gradient, their total, an in-place scaling.
/// @param sharded_over the group over whose ranks the gradients are cut: their norms are summed over it
void clip_gradients(Trace& trace, const std::vector<const Tensor*>& gradients,
                    std::optional<GroupId> sharded_over = {});

/// A frozen weight in 4 bits (NF4): two elements a byte, a byte of scale for each 64, and an fp32 scale for each 256 of those.
Tensor quantized_weight(Trace& trace, const Parameter& parameter);

/// PEFT gives each adapter the type of its layer, on the layer's device, and then casts 16-bit ones to fp32, one by one.
/// @param base type of the layers' weights
/// @param base of the layers
/// @param fp32 the cast is not turned off
void attach_adapters(Trace& trace, TorchModel& model, DType base, bool fp32);

/// What a model holds on the device beside its parameters: the rotary frequencies, and a copy of them.
std::vector<Tensor> rotary_frequencies(Trace& trace, const ModelSpec& model);

DeviceTraits traits_of(const DeviceSpec& device);

}  // namespace plimsoll
