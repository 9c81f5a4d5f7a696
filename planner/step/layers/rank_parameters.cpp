// The parameters of a rank (planner/step/layers/rank_parameters.hpp).
#include "planner/step/layers/rank_parameters.hpp"

#include <fmt/format.h>

#include <string_view>
#include <tuple>
#include <utility>

#include "planner/spec/trained.hpp"
#include "planner/step/layers/routing.hpp"

namespace plimsoll {

namespace {

Symbol symbol_of(Role role, std::size_t dim) {
  const bool first = dim == 0;
  switch (role) {
    case Role::embedding:
    case Role::head: return first ? Symbol::vocab : Symbol::hidden;
    case Role::q: return first ? Symbol::q_width : Symbol::hidden;
    case Role::k:
    case Role::v: return first ? Symbol::kv_width : Symbol::hidden;
    case Role::o: return first ? Symbol::hidden : Symbol::q_width;
    case Role::gate:
    case Role::up:
    case Role::shared_gate:
    case Role::shared_up: return first ? Symbol::intermediate : Symbol::hidden;
    case Role::down:
    case Role::shared_down: return first ? Symbol::hidden : Symbol::intermediate;
    case Role::router: return first ? Symbol::experts : Symbol::hidden;
    case Role::experts_gate_up: return first ? Symbol::experts : dim == 1 ? Symbol::intermediate : Symbol::hidden;
    case Role::experts_down: return first ? Symbol::experts : dim == 1 ? Symbol::hidden : Symbol::intermediate;
    default: return Symbol::number;
  }
}

bool of_dense_mlp(Role role) {
  return role == Role::gate || role == Role::up || role == Role::down || role == Role::gate_bias ||
         role == Role::up_bias || role == Role::down_bias;
}

class RankList {
 public:
  RankList(const Scenario& scenario, TorchModel& model)
      : scenario_(scenario),
        model_(model),
        dtype_(scenario.plan.precision == Precision::bf16_autocast ? DType::fp32 : scenario.plan.compute_dtype()) {}

  RankParameters list() {
    const MoeImplementation implementation = scenario_.plan.moe.implementation;
    Parameter* adapted = nullptr;  // its adapter comes when the layer's bias is listed, too
    for (const ParameterDecl& decl : scenario_.model.parameters) {
      if (adapted && !in_one_module(*adapted->decl, decl)) add_adapter(*std::exchange(adapted, nullptr));
      if (implementation == MoeImplementation::native && replaced_by_native(decl)) {
        if (decl.role == Role::gate) add_native(decl);
      } else if (implementation == MoeImplementation::autoep && decl.layer >= 0 && of_autoep(decl)) {
        add_autoep(decl);
      } else if (implementation == MoeImplementation::loop && decl.layer >= 0 && decl.expert) {
        add_looped(decl);
      } else {
        Parameter& parameter = add(decl);
        found_.by_role[{decl.layer, decl.role}] = &parameter;
        if (is_adapted(scenario_.plan, decl)) adapted = &parameter;
      }
    }
    if (adapted) add_adapter(*adapted);
    return std::move(found_);
  }

 private:
  static bool in_one_module(const ParameterDecl& a, const ParameterDecl& b) {
    const auto module = [](const ParameterDecl& decl) {
      return std::string_view(decl.name).substr(0, decl.name.rfind('.'));
    };
    return module(a) == module(b);
  }

  void add_adapter(const Parameter& weight) {
    const std::string module = weight.decl->name.substr(0, weight.decl->name.rfind('.'));
    const std::int64_t rank = scenario_.plan.lora->rank;
    const auto matrix = [&](const char* name, std::int64_t rows, std::int64_t columns) {
      Parameter& parameter = add_own(*weight.decl, module + name, Role::other, {rows, columns}, weight.decl->expert);
      parameter.trainable = true;
      parameter.adapter = true;
      parameter.dtype = adapter_dtype(scenario_.plan, dtype_);
      return &parameter;
    };
    found_.adapters[&weight] = {matrix(".lora_A.default.weight", rank, weight.shape.dim(1).size),
                                matrix(".lora_B.default.weight", weight.shape.dim(0).size, rank)};
  }

  Parameter& add(const ParameterDecl& decl) {
    Parameter& parameter = model_.parameters_in_order.emplace_back();
    parameter.decl = &decl;
    parameter.name = decl.name.c_str();
    parameter.index = static_cast<int>(model_.parameters_in_order.size()) - 1;
    parameter.group = decl.expert ? 1 : 0;
    parameter.dtype = dtype_;
    parameter.trainable = is_trained(scenario_.plan, decl);
    parameter.quantized = is_quantized(scenario_.plan, decl);
    for (std::size_t i = 0; i < decl.shape.size(); ++i) {
      parameter.shape.push({decl.shape[i], symbol_of(decl.role, i)});
    }
    return parameter;
  }

  /// A parameter that the file does not name; `like` says whether it is trained.
  Parameter& add_own(const ParameterDecl& like, std::string name, Role role, std::vector<std::int64_t> shape,
                     bool expert) {
    ParameterDecl& decl = model_.replaced.emplace_back();
    decl.name = std::move(name);
    decl.role = role;
    decl.layer = like.layer;
    decl.numel = 1;
    for (const std::int64_t extent : shape) decl.numel *= extent;
    decl.shape = std::move(shape);
    decl.expert = expert;
    decl.trainable = like.trainable;
    return add(decl);
  }

  bool replaced_by_native(const ParameterDecl& decl) const {
    return decl.layer >= 0 && of_dense_mlp(decl.role) &&
           moe_of_layer(scenario_, static_cast<std::size_t>(decl.layer)).has_value();
  }

  MlpParameters add_mlp(const ParameterDecl& gate, const std::string& prefix, std::int64_t width, bool bias,
                        bool expert) {
    const std::int64_t h = scenario_.model.hidden;
    const auto add_linear = [&](const char* name, Role role, Role bias_role, std::int64_t rows, std::int64_t columns) {
      Parameter& weight = add_own(gate, prefix + name + ".weight", role, {rows, columns}, expert);
      Parameter* added = bias ? &add_own(gate, prefix + name + ".bias", bias_role, {rows}, expert) : nullptr;
      if (is_adapted(scenario_.plan, *weight.decl)) add_adapter(weight);
      return std::pair{&weight, added};
    };
    MlpParameters mlp;
    std::tie(mlp.gate, mlp.gate_bias) = add_linear("gate_proj", Role::gate, Role::gate_bias, width, h);
    std::tie(mlp.up, mlp.up_bias) = add_linear("up_proj", Role::up, Role::up_bias, width, h);
    std::tie(mlp.down, mlp.down_bias) = add_linear("down_proj", Role::down, Role::down_bias, h, width);
    return mlp;
  }

  // MoE(deepspeed_moe = MOELayer(gate, experts), mlp, coefficient): children in this order.
  void add_native(const ParameterDecl& gate) {
    const MoeSpec moe = *moe_of_layer(scenario_, static_cast<std::size_t>(gate.layer));
    const std::int64_t h = scenario_.model.hidden;
    const std::string block = gate.name.substr(0, gate.name.rfind("gate_proj"));
    NativeMoeParameters& native = found_.native[gate.layer];
    native.gate = &add_own(gate, block + "deepspeed_moe.gate.wg.weight", Role::router, {moe.experts, h}, false);
    for (std::int64_t e = 0; e < moe.experts / scenario_.plan.expert_parallel; ++e) {
      const std::string prefix = fmt::format("{}deepspeed_moe.experts.deepspeed_experts.{}.", block, e);
      native.experts.push_back(add_mlp(gate, prefix, moe.expert_intermediate, moe.expert_bias, true));
    }
    if (!scenario_.plan.moe.use_residual) return;
    native.residual = add_mlp(gate, block + "mlp.", moe.expert_intermediate, moe.expert_bias, false);
    native.coefficient = &add_own(gate, block + "coefficient.weight", Role::other, {2, h}, false);
    native.coefficient_bias = &add_own(gate, block + "coefficient.bias", Role::other, {2}, false);
  }

  void add_looped(const ParameterDecl& decl) {
    if (found_.looped.count(decl.layer) != 0) return;
    const MoeSpec& moe = *scenario_.model.layers[static_cast<std::size_t>(decl.layer)].moe;
    const std::string block = decl.name.substr(0, decl.name.rfind("experts."));
    std::vector<MlpParameters>& experts = found_.looped[decl.layer];
    for (std::int64_t e = 0; e < moe.experts; ++e) {
      const std::string prefix = fmt::format("{}experts.{}.", block, e);
      experts.push_back(add_mlp(decl, prefix, moe.expert_intermediate, moe.expert_bias, true));
    }
  }

  /// The router and the experts of a mixture, which AutoEP builds anew; shared experts stay.
  static bool of_autoep(const ParameterDecl& decl) {
    return decl.expert || decl.role == Role::router || decl.role == Role::router_bias ||
           decl.role == Role::score_correction_bias;
  }

  // AutoEPMoELayer(router, experts, shared_experts, shared_experts_gate): children in this order.
  void add_autoep(const ParameterDecl& decl) {
    if (found_.autoep.count(decl.layer) != 0) return;
    const MoeSpec& moe = *scenario_.model.layers[static_cast<std::size_t>(decl.layer)].moe;
    const std::int64_t h = scenario_.model.hidden, width = moe.expert_intermediate;
    const std::int64_t local = moe.experts / scenario_.plan.expert_parallel;
    AutoEpParameters& autoep = found_.autoep[decl.layer];
    const ParameterDecl* experts = nullptr;
    for (const ParameterDecl& other : scenario_.model.parameters) {
      if (other.layer != decl.layer) continue;
      if (other.role == Role::experts_gate_up) experts = &other;
      if (!other.expert && of_autoep(other)) found_.by_role[{other.layer, other.role}] = &add(other);
    }
    CHECK(experts, "a mixture of experts lists its experts' weights");
    const std::string prefix = experts->name.substr(0, experts->name.rfind("experts.")) + "experts.";
    autoep.w1 = &add_own(*experts, prefix + "w1", Role::experts_gate_up, {local, width, h}, true);
    autoep.w2 = &add_own(*experts, prefix + "w2", Role::experts_down, {local, h, width}, true);
    autoep.w3 = &add_own(*experts, prefix + "w3", Role::experts_gate_up, {local, width, h}, true);
  }

  const Scenario& scenario_;
  TorchModel& model_;
  DType dtype_;
  RankParameters found_;
};

}  // namespace

RankParameters list_rank_parameters(const Scenario& scenario, TorchModel& model) {
  return RankList(scenario, model).list();
}

}  // namespace plimsoll
