// What do DeepSpeed's stages 0, 1 and 2 have in common?  Every rank holds all parameters: the model is built on the GPU in 16
// bits or on the host in fp32, cast, placed on the GPU and broadcast from the first rank; then the stage's optimizer takes
// over.  Saving copies one storage at a time to the host.
//
// Source: DeepSpeed 0.19.8 (runtime/engine.py), measured peaks of construction and saving.
#pragma once

#include <map>
#include <vector>

#include "planner/step/engines/deepspeed_groups.hpp"
#include "planner/step/engines/torch_job.hpp"

namespace plimsoll {

class ReplicatedJob : public TorchJob {
 public:
  ReplicatedJob(const Scenario& scenario, int rank, RankProgram& program);

 protected:
  void construct() final;
  void save() final;

  /// The optimizer takes over: flat buffers, masters, what it allocates at once.
  virtual void initialize_optimizer() = 0;
  /// What save_16bit_model copies from the GPU, storage by storage.
  virtual std::vector<Tensor> model_storages() const = 0;
  /// What this rank's optimizer file holds on the GPU, storage by storage.
  virtual std::vector<Tensor> optimizer_storages() const = 0;
  /// Stage 0 keeps the optimizer's state in the model file, which only the first rank writes.
  virtual bool optimizer_in_model_file() const { return false; }

  /// Type of master weights and of the gradients that the optimizer sees.
  DType master_dtype() const { return plan().master_fp32 ? DType::fp32 : plan().compute_dtype(); }
  /// An all-reduce, all-gather or broadcast of `tensor` with what its issue costs the host; none in a group of one.
  void communicate(CollectiveKind kind, const Tensor& tensor, Bytes full_size, GroupId group, std::int64_t ranks,
                   const char* role);
  bool has_moe() const { return !model_->mixtures.empty() && on_expert_mesh_; }

  std::vector<OptimizerGroup> groups_;

 private:
  /// Tensors of the model as it is built that the job's own model does not have: what a MoE layer replaces.
  using Replaced = std::map<int, std::vector<Tensor>>;  // by layer

  Tensor build(const Shape& shape, const char* name);
  void build_model();
  void add_adapters();
  void insert_native_moe(int layer, std::vector<Parameter*>& own, std::vector<Tensor>& old_mlp);
  void cast_on_host();
  void replace_by_autoep();
  void place_on_device();
  void cast_on_device();
  void save_experts();
  void copy_to_host(const std::vector<Tensor>& storages, bool one_by_one, const char* role);

  bool on_expert_mesh_ = false;
  Replaced replaced_;
  std::vector<Tensor> rotary_;        // frequencies
  std::vector<Tensor> token_counts_;  // of AutoEP's layers
};

}  // namespace plimsoll
