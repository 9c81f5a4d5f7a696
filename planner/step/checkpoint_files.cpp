// The files of a DeepSpeed checkpoint (planner/step/checkpoint_files.hpp).
#include "planner/step/checkpoint_files.hpp"

#include <fmt/format.h>

#include "planner/step/engines/deepspeed_groups.hpp"

namespace plimsoll {

namespace {

// What torch.save writes beside the payload, in bytes (measured).
constexpr std::int64_t per_file = 1024;
constexpr std::int64_t per_tensor = 84;           // its pickled record, without its name
constexpr std::int64_t per_module = 40;           // in a state_dict's metadata, without its name
constexpr std::int64_t per_parameter_shape = 36;  // stages 1 to 3 list them, without the name
constexpr std::int64_t config = 1400;
constexpr std::int64_t per_partitioned_parameter = 83, optimizer_file = 1200;
constexpr std::int64_t stage3_placeholder = 500;  // a parameter's record in the model file of a stage-3 rank
constexpr std::int64_t fp32_script = 38580, torch_script = 2490;

/// What a file holds: tensors' elements, and all that torch.save writes.
struct Written {
  std::int64_t bytes = 0, tensors = 0;
  Written& operator+=(const Written& other) {
    bytes += other.bytes;
    tensors += other.tensors;
    return *this;
  }
  Written operator+(std::int64_t records) const { return {bytes + records, tensors}; }
};

class CheckpointWriter {
 public:
  CheckpointWriter(const Scenario& scenario, std::string_view tag)
      : scenario_(scenario), plan_(scenario.plan), tag_(tag), model_(build_modules(scenario)) {
    for (const Parameter& parameter : model_->parameters_in_order) {
      const bool expert = on_expert_mesh(plan_, parameter);
      moe_ = moe_ || expert;
      names_ += static_cast<std::int64_t>(std::string_view(parameter.name).size());
      (expert ? experts_ : dense_) += parameter.numel();
      dense_tensors_ += expert ? 0 : 1;
      if (parameter.trainable) trainable_ += parameter.numel();
    }
    if (scenario.model.tied_embeddings) names_ += 14;  // "lm_head.weight"
    tensors_ = static_cast<std::int64_t>(model_->parameters_in_order.size()) + (scenario.model.tied_embeddings ? 1 : 0);
  }

  std::vector<CheckpointFile> files() {
    weights();
    files_.push_back({"checkpoint/latest", Bytes(static_cast<std::int64_t>(tag_.size()))});
    if (plan_.zero.stage > 0) {
      files_.push_back({"checkpoint/zero_to_fp32.py", Bytes(fp32_script)});
      files_.push_back({"checkpoint/zero_to_torch.py", Bytes(torch_script)});
    }
    if (plan_.zero.stage == 3) {
      placeholders();
    } else {
      if (moe_) experts();
      model_file();
    }
    if (plan_.zero.stage > 0) optimizer_files();
    return std::move(files_);
  }

 private:
  std::int64_t narrow() const { return size_of(plan_.compute_dtype()); }
  std::int64_t master() const { return plan_.master_fp32 ? 4 : narrow(); }
  std::int64_t state() const { return master() + 2 * size_of(plan_.optimizer.moments); }  // bytes per element

  /// `count` zip entries of `payload` bytes together.
  static Written storages(std::int64_t count, std::int64_t payload, std::string_view stem) {
    const std::int64_t name = static_cast<std::int64_t>(stem.size()) + 9;  // "stem/data/123"
    const std::int64_t beyond = count > 0 && payload / count > (std::int64_t{4} << 30) ? 40 : 0;
    return {payload + count * (round_up(16 + 30 + name + 4, 64) + 46 + name + beyond), payload};
  }

  std::int64_t module_records() const {
    std::int64_t bytes = 0;
    for (const Module* module : model_->modules) {
      const std::int64_t prefix = module->layer >= 0 ? 15 : 6;  // "model.layers.N."
      bytes += per_module + prefix + static_cast<std::int64_t>(std::string_view(module->name).size());
    }
    return bytes;
  }

  std::int64_t tensor_records() const { return tensors_ * per_tensor + names_; }

  void add(std::string_view folder, std::string_view stem, std::string_view ending, const Written& written) {
    files_.push_back({fmt::format("{}/{}{}", folder, stem, ending), Bytes(written.bytes), Bytes(written.tensors)});
  }

  std::string checkpoint() const { return fmt::format("checkpoint/{}", tag_); }

  std::vector<OptimizerGroup> groups(int rank) { return optimizer_groups(plan_, rank, model_->parameters_in_order); }

  /// The 16-bit weights as storages: the flat buffers, or a storage a parameter.
  Written weight_storages(std::string_view stem) {
    std::int64_t payload = 0, count = 0;
    if (plan_.zero.stage == 1 || plan_.zero.stage == 2) {
      for (const OptimizerGroup& group : groups(0)) {
        payload += narrow() * group.padded();
        ++count;
      }
      for (const Parameter& parameter : model_->parameters_in_order) {
        if (parameter.trainable) continue;
        payload += narrow() * parameter.numel();
        ++count;
      }
    } else {
      for (const Parameter& parameter : model_->parameters_in_order) {
        if (parameter.adapter) payload += (size_of(parameter.dtype) - narrow()) * parameter.numel();
      }
      payload += narrow() * (dense_ + experts_);
      count = static_cast<std::int64_t>(model_->parameters_in_order.size());
    }
    return storages(count, payload, stem);
  }

  void weights() {
    const bool gathered = plan_.zero.stage3_gather_16bit_weights_on_model_save;
    if (plan_.zero.stage == 3 && (!gathered || moe_)) return;
    const std::int64_t metadata = plan_.zero.stage == 3 ? 0 : module_records();
    add("save_16bit", "m", ".bin", weight_storages("m") + tensor_records() + metadata + per_file);
  }

  void model_file() {
    const std::string_view stem = "mp_rank_00_model_states";
    Written written{tensor_records() + module_records() + per_file + config};
    if (moe_) {
      std::int64_t payload = narrow() * dense_, count = dense_tensors_;
      if (scenario_.model.tied_embeddings) {
        payload += narrow() * model_->embedding->numel();
        ++count;
      }
      if (plan_.moe.implementation == MoeImplementation::autoep) {
        for (const MoeSpec& moe : model_->mixtures) {  // the router has two names
          payload += narrow() * moe.experts * scenario_.model.hidden;
          ++count;
          written.bytes += 700 + 860 * std::int64_t{plan_.expert_parallel} + 4 * moe.experts;
        }
      }
      written += storages(count, payload, stem);
    } else {
      written += weight_storages(stem);
    }
    if (plan_.zero.stage == 0) written += optimizer_state(stem);
    if (plan_.zero.stage > 0) written.bytes += tensors_ * per_parameter_shape + names_;
    add(checkpoint(), stem, ".pt", written);
  }

  /// Stage 0: masters (none beside an fp32 model), moments and a step counter a parameter.
  Written optimizer_state(std::string_view stem) const {
    const bool masters = plan_.compute_dtype() != DType::fp32;
    const auto count = static_cast<std::int64_t>(model_->parameters_in_order.size());
    const std::int64_t bytes = state() - (masters ? 0 : master());
    const std::int64_t per_parameter = masters ? 4 : 3;
    return storages(count * per_parameter, bytes * trainable_ + 4 * count, stem) + count * per_parameter * per_tensor;
  }

  void experts() {
    int index = 0;
    for (const DecoderLayerModule& layer : model_->layers) {
      if (!layer.is_moe) continue;
      std::int64_t elements = 0;
      for (const Parameter& parameter : model_->parameters_in_order) {
        const bool here = parameter.decl->layer == layer.layer && on_expert_mesh(plan_, parameter);
        if (here) elements += parameter.numel();
      }
      const std::int64_t experts = layer.moe.spec->experts, local = experts / plan_.expert_parallel;
      for (std::int64_t e = 0; e < experts; ++e) {
        const std::string stem = fmt::format("layer_{}_expert_{}_mp_rank_00_model_states", index, e);
        add(checkpoint(), stem, ".pt", storages(3, narrow() * elements / local, stem) + 3 * per_tensor + per_file);
      }
      ++index;
    }
    if (plan_.zero.stage > 0) return;
    for (int r = 0; r < plan_.expert_parallel; ++r) {
      const std::string stem = fmt::format("expp_rank_{}_mp_rank_00_optim_states", r);
      add(checkpoint(), stem, ".pt", optimizer_state(stem) + per_file);
    }
  }

  void placeholders() {
    std::int64_t frozen = 0;
    for (const Parameter& parameter : model_->parameters_in_order) {
      if (!parameter.trainable) frozen += narrow() * ceil_div(parameter.numel(), ranks_of(parameter));
    }
    for (int r = 0; r < plan_.world_size; ++r) {
      const std::string stem = fmt::format("zero_pp_rank_{}_mp_rank_00_model_states", r);
      add(checkpoint(), stem, ".pt", {tensors_ * stage3_placeholder + config + per_file + frozen, frozen});
    }
  }

  std::int64_t ranks_of(const Parameter& parameter) const {
    return on_expert_mesh(plan_, parameter) ? plan_.expert_data_parallel() : plan_.world_size;
  }

  void optimizer_files() {
    const char* prefix = plan_.precision == Precision::bf16 ? "bf16_" : "";
    for (int r = 0; r < plan_.world_size; ++r) {
      std::int64_t elements = 0, count = 0, touching = 0;
      for (const OptimizerGroup& group : groups(r)) {
        count += 3;
        for (std::size_t i = 0; i < group.parameters.size(); ++i) {
          if (plan_.zero.stage == 3) {
            elements += ceil_div(group.parameters[i]->numel(), group.ranks);
          } else if (group.slice(i, group.rank) > 0) {
            ++touching;
          }
        }
        if (plan_.zero.stage < 3) elements += group.partition();
      }
      const std::string stem = fmt::format("{}zero_pp_rank_{}_mp_rank_00_optim_states", prefix, r);
      const std::int64_t records = touching * per_partitioned_parameter + optimizer_file;
      add(checkpoint(), stem, ".pt", storages(count, state() * elements, stem) + records + per_file);
    }
  }

  const Scenario& scenario_;
  const Plan& plan_;
  std::string_view tag_;
  std::unique_ptr<TorchModel> model_;
  std::int64_t dense_ = 0, experts_ = 0, trainable_ = 0;  // elements of one rank
  std::int64_t tensors_ = 0, dense_tensors_ = 0, names_ = 0;
  bool moe_ = false;
  std::vector<CheckpointFile> files_;
};

}  // namespace

std::vector<CheckpointFile> checkpoint_files(const Scenario& scenario, std::string_view tag) {
  if (scenario.plan.engine != Engine::deepspeed) return {};
  return CheckpointWriter(scenario, tag).files();
}

}  // namespace plimsoll
