// The ledger's surroundings, read off from the scenario (planner/cli/scenario_context.hpp).
//
// How well are allocated bytes known?  The rules were read off from, and checked against, 61 steps on one and two H200
// (Llama, Mixtral and Qwen3-MoE; PyTorch 2.11, FSDP2, DeepSpeed 0.19.8 at stages 0-3).  Within that range a figure is
// interpolated, beyond it (more ranks, other families or devices) extrapolated, and where a plan uses what was only read in
// the source it is assumed.
#include "planner/cli/scenario_context.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "planner/account/device_constants.hpp"
#include "planner/spec/topology.hpp"

namespace plimsoll {
namespace {

bool uses(const Scenario& scenario, MoeImplementation implementation) {
  return has_experts(scenario.model, scenario.plan) && scenario.plan.moe.implementation == implementation;
}

/// DeepSpeed's own expert layers, which keep process groups for them.
bool has_expert_groups(const Scenario& scenario) {
  return uses(scenario, MoeImplementation::native) || uses(scenario, MoeImplementation::autoep);
}

/// PyTorch's sdpa takes cuDNN's kernel on Hopper for heads of a multiple of 8.
bool uses_cudnn_attention(const Scenario& scenario) {
  const std::vector<LayerSpec>& layers = scenario.model.layers;
  return scenario.plan.attention == AttentionImplementation::sdpa && !layers.empty() &&
         layers.front().attention.head_dim % 8 == 0;
}

/// plimsoll-run's: a communicator for each set of ranks and lane that NCCL serves.  Reductions have a lane, the step's report and
/// what stages 1 and 2 gather another, gathers of stage 3 a third; experts sharded over fewer ranks than all are sets of their own.
int ring_communicators_of_the_runtime(const Scenario& scenario) {
  constexpr Bytes of_weights{std::int64_t{1} << 20};
  const Plan& plan = scenario.plan;
  const int ep = plan.expert_parallel, stage = plan.zero.stage;
  const auto by_kernels = [&](const GroupShape& group, CollectiveKind kind, Bytes size) {
    return reference_carrier(scenario.cluster, group, kind, size) == Carrier::kernels;
  };
  int count = 0;
  for (const bool experts : {false, true}) {
    const GroupShape group{experts ? plan.world_size / ep : plan.world_size, experts ? ep : 1, 0};
    if (group.size == 1 || (experts && ep == 1)) continue;
    const bool gathers = stage > 0 && by_kernels(group, CollectiveKind::all_gather, of_weights);
    const bool reports = !experts && by_kernels(group, CollectiveKind::all_reduce, Bytes(1));
    const CollectiveKind reduction = stage < 2 ? CollectiveKind::all_reduce : CollectiveKind::reduce_scatter;
    count += by_kernels(group, reduction, of_weights) ? 1 : 0;
    count += stage == 3 ? (gathers ? 1 : 0) + (reports ? 1 : 0) : (gathers || reports ? 1 : 0);
  }
  return count;
}

/// Groups whose ranks have run a ring collective by the first steady step.
int ring_communicators(const Scenario& scenario) {
  const Plan& plan = scenario.plan;
  // On one GPU DeepSpeed's collectives run all the same, PyTorch's engines leave them out.
  if (plan.world_size == 1 && plan.engine == Engine::deepspeed) return has_expert_groups(scenario) ? 5 : 1;
  if (plan.world_size == 1) return 0;
  switch (plan.engine) {
    case Engine::ddp: return 1;
    case Engine::fsdp2: return plan.fsdp.replicate > 1 ? 2 : 1;
    case Engine::plimsoll: return ring_communicators_of_the_runtime(scenario);
    case Engine::deepspeed: break;
  }
  // Under zero.Init parameters keep the world group, and so do their gradients and norms; fp16's check of overflow does not.
  const bool world_only = plan.zero.stage == 3 && plan.precision != Precision::fp16 &&
                          (plan.construction == Construction::zero_init || plan.construction == Construction::meta);
  if (!has_expert_groups(scenario)) return world_only ? 1 : 2;
  const bool drops = plan.moe.implementation != MoeImplementation::native || plan.moe.drop_tokens;
  const bool one_more = plan.expert_parallel > 1 && (plan.zero.stage == 0 || plan.zero.stage == 3 || !drops);
  return one_more ? 6 : 5;
}

/// plimsoll-run's, of the layer whose backward asks for most.
AttentionSizes attention_sizes(const Scenario& scenario) {
  AttentionSizes most;
  for (const LayerSpec& layer : scenario.model.layers) {
    const AttentionSizes sizes{scenario.plan.micro_batch * scenario.plan.sequence, layer.attention.q_heads,
                               layer.attention.kv_heads, layer.attention.head_dim};
    if (attention_workspace(sizes) > attention_workspace(most)) most = sizes;
  }
  return most;
}

ProcessUse process_use(const Scenario& scenario) {
  const Plan& plan = scenario.plan;
  ProcessUse use;
  use.measured_device = scenario.cluster.device.name == "h200";
  if (plan.engine == Engine::deepspeed) use.software = Software::deepspeed;
  if (plan.engine == Engine::plimsoll) {
    use.software = Software::plimsoll_run;
    use.attention = attention_sizes(scenario);
  }
  use.nvlink = scenario.cluster.in_node.tier == Tier::nvlink;
  use.world_size = plan.world_size;
  use.grouped_gemm = uses(scenario, MoeImplementation::grouped);
  use.cudnn_attention = uses_cudnn_attention(scenario);
  use.moe_groups = plan.engine == Engine::deepspeed && has_expert_groups(scenario);
  use.ring_communicators = ring_communicators(scenario);
  if (plan.expert_parallel > 1) {
    use.exchange_peers_in_node = std::min(plan.expert_parallel, scenario.cluster.devices_per_node) - 1;
    use.exchange_crosses_nodes = plan.expert_parallel > scenario.cluster.devices_per_node;
  }
  return use;
}

/// What the plan uses of that was read in the source, but never measured; empty: nothing.
std::string unmeasured_part(const Scenario& scenario) {
  const Plan& plan = scenario.plan;
  if (scenario.model.sketch) return "the layers of a sketch";
  if (plan.engine == Engine::plimsoll && plan.precision == Precision::fp32) return "the reference runtime in fp32";
  if (plan.engine == Engine::ddp && plan.world_size > 1) return "DistributedDataParallel's buckets";
  if (plan.attention == AttentionImplementation::flash) return "flash attention";
  if (plan.loss_chunk > 0) return "a chunked loss";
  if (uses(scenario, MoeImplementation::loop)) return "experts in a loop";
  if (plan.offload.optimizer == OffloadDevice::nvme || plan.offload.parameters == OffloadDevice::nvme)
    return "offload to NVMe";
  if (plan.fsdp.replicate > 1 && plan.engine == Engine::fsdp2) return "hybrid sharding";
  if (plan.engine == Engine::fsdp2 && plan.offload.parameters != OffloadDevice::none && plan.world_size > 1)
    return "fully_shard's offload on several ranks";
  if (plan.optimizer.moments == DType::int8) return "moments in 8 bits";
  if (!plan.trainable_patterns.empty() && plan.world_size > 1)
    return "training a part of the parameters on several ranks";
  if (plan.lora && plan.lora->base_nf4) return "a base in 4 bits";
  if (plan.lora && plan.engine == Engine::fsdp2) return "adapters under fully_shard";
  if (plan.expert_parallel > 1 && plan.expert_parallel < plan.world_size)
    return "experts sharded over part of the ranks";
  return {};
}

Evidence allocated_evidence(const Scenario& scenario) {
  static constexpr std::array<std::string_view, 3> families = {"llama", "mixtral", "qwen3_moe"};
  if (!unmeasured_part(scenario).empty()) return Evidence::assumed;
  const bool known_family = std::find(families.begin(), families.end(), scenario.model.family) != families.end();
  const bool measured = known_family && scenario.plan.world_size <= 2 && scenario.cluster.device.name == "h200";
  return measured ? Evidence::interpolated : Evidence::extrapolated;
}

/// Where every step routes other numbers of rows, freed blocks fit less well than in a replay with one routing.
enum class RowsChange : std::uint8_t {
  not_at_all,
  by_padding,     ///< all experts on one rank: the sum of rows is always the same, but for what fills up each expert's
  in_one_layer,   ///< recomputed: only one layer's rows are alive at a time
  in_every_layer  ///< ranks exchange rows, or a buffer holds as many for each expert as the fullest has
};
RowsChange rows_change(const Scenario& scenario) {
  const Plan& plan = scenario.plan;
  const bool dropless = uses(scenario, MoeImplementation::native) && !plan.moe.drop_tokens;
  if (!dropless && !uses(scenario, MoeImplementation::autoep)) return RowsChange::not_at_all;
  if (plan.recompute.every == 1) return RowsChange::in_one_layer;
  return dropless || plan.expert_parallel > 1 ? RowsChange::in_every_layer : RowsChange::by_padding;
}
/// Of a replay of one step's routing, how far reserved lay above and below it.  In every layer: 18 and 6 % at most in ten measured
/// runs.  In one layer: 0 to 0.4 % in seven, a block of such rows finds room or does not, and so may the one that it is made
/// from.  By padding: 0 to 0.5 % above in seven, blocks of up to 8 rows an expert more.
constexpr double changing_rows_above = 0.18, changing_rows_below = 0.06, changing_few_rows = 0.01;
/// In the same runs the allocated peak of other steps lay between 3.2 % below and 1.7 % above that of the step whose routing
/// is given.
constexpr double other_steps_above = 0.017, other_steps_below = 0.032;

}  // namespace

LedgerContext ledger_context(const Scenario& scenario) {
  const Plan& plan = scenario.plan;
  LedgerContext context;
  context.capacity = scenario.cluster.device.memory;
  context.in_arena = plan.engine == Engine::plimsoll;
  // In an arena a buffer takes its own bytes, as in expandable segments: no block is left unsplit.
  context.rules.expandable_segments = plan.expandable_segments || context.in_arena;
  context.outside = outside_framework(process_use(scenario));
  context.allocated_evidence = allocated_evidence(scenario);
  if (plan.engine == Engine::ddp || plan.engine == Engine::fsdp2) context.unknown = LedgerContext::Unknown::past;
  if (plan.engine == Engine::deepspeed && plan.zero.stage == 3) context.unknown = LedgerContext::Unknown::lateness;
  context.reserved_evidence = context.allocated_evidence;
  if (const RowsChange change = rows_change(scenario); change != RowsChange::not_at_all) {
    context.reserved_evidence = std::max(context.reserved_evidence, Evidence::extrapolated);
    const bool everywhere = change == RowsChange::in_every_layer;
    context.reserved_margin = everywhere ? changing_rows_above : changing_few_rows;
    context.reserved_margin_below = everywhere ? changing_rows_below : changing_few_rows;
    context.allocated_margin = everywhere ? other_steps_above : 0;
    context.allocated_margin_below = everywhere ? other_steps_below : 0;
  }
  context.host_capacity = scenario.cluster.host_memory;
  context.ranks_per_node = std::min(plan.world_size, scenario.cluster.devices_per_node);
  context.host_base = host_base({plan.construction == Construction::cpu, plan.construction == Construction::zero_init,
                                 has_experts(scenario.model, scenario.plan)});
  context.host_base_shared = host_base_shared();
  return context;
}

std::vector<Assumption> assumptions_of(const Scenario& scenario, const LedgerContext& context) {
  std::vector<Assumption> all;
  const Plan& plan = scenario.plan;
  const std::string part = unmeasured_part(scenario);
  for (const std::string& what : scenario.model.assumptions) all.push_back({what, Evidence::assumed});
  if (!part.empty()) {
    all.push_back({fmt::format("{}: as read in the source, never compared with a run", part), Evidence::assumed});
  } else {
    all.push_back({fmt::format("layers, engine and allocator of {} behave as in the measured steps on one and two H200",
                               name_of(plan.engine)),
                   context.allocated_evidence});
  }
  if (has_experts(scenario.model, scenario.plan) && plan.routing.kind == Routing::Kind::balanced)
    all.push_back({"routing is balanced: every expert receives the same number of rows", Evidence::assumed});
  if (context.reserved_margin > 0)
    all.push_back(
        {fmt::format(
             "reserved may be up to {:.0f} % higher or {:.0f} % lower, allocated up to {:.1f} % higher or {:.1f} % "
             "lower, as the numbers of routed rows change from step to step",
             100 * context.reserved_margin, 100 * context.reserved_margin_below, 100 * context.allocated_margin,
             100 * context.allocated_margin_below),
         Evidence::measured});
  all.push_back({fmt::format("CUDA context, NCCL and libraries take {:.2f} GiB beside the framework's pool",
                             static_cast<double>(context.outside.total().count) / (1 << 30)),
                 context.outside.evidence});
  all.push_back({fmt::format("the device has {} bytes ({})", context.capacity.count,
                             scenario.cluster.device.source.empty() ? "as the cluster file states"
                                                                    : scenario.cluster.device.source),
                 scenario.cluster.device.evidence});
  all.push_back({fmt::format("{} 1.9 GB of host memory a rank{}",
                             plan.engine == Engine::plimsoll ? "the process takes as much as one of PyTorch,"
                                                             : "Python, PyTorch and the engine take",
                             has_experts(scenario.model, scenario.plan) ? ", experts 0.3 GB more" : ""),
                 has_experts(scenario.model, scenario.plan) || plan.engine != Engine::deepspeed ? Evidence::assumed
                                                                                                : Evidence::measured});
  std::stable_sort(all.begin(), all.end(),
                   [](const Assumption& a, const Assumption& b) { return a.evidence > b.evidence; });
  return all;
}

}  // namespace plimsoll
