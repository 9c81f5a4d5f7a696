// The terms behind each number (planner/cli/explain_number.hpp).  A number of bytes is a sum over the tensors alive at one
// op, each rounded up to the allocator's 512 bytes, plus what its blocks keep beyond that.
#include "planner/cli/explain_number.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>

#include "planner/account/volume.hpp"
#include "planner/base/format.hpp"
#include "planner/cli/in_words.hpp"
#include "planner/step/checkpoint_files.hpp"
#include "planner/step/layers/module.hpp"
#include "planner/step/layers/routing.hpp"

namespace plimsoll {
namespace {

constexpr std::int64_t block = 512;

using Terms = std::vector<Term>;

void largest_first(Terms& terms) {
  std::stable_sort(terms.begin(), terms.end(), [](const Term& a, const Term& b) { return a.value > b.value; });
}

/// Equal tensors of several layers are one term.
Terms terms_of(const RankProgram& program, const std::vector<BufferId>& buffers, Bytes least = Bytes(0)) {
  std::map<std::tuple<std::string, std::int64_t, Category>, Term> found;
  for (const BufferId id : buffers) {
    const BufferDecl& buffer = program.buffers[id];
    if (buffer.pool == Lane::host || buffer.size < least) continue;
    Term& term = found[{buffer.name, buffer.size.count, buffer.category}];
    if (term.value == 0) {
      term = {buffer.name, formula_of(buffer), name_of(buffer.category), 0, 0, buffer.layer, buffer.layer};
    }
    ++term.count;
    term.value += round_up(std::max<std::int64_t>(buffer.size.count, 1), block);
    term.first_layer = std::min<int>(term.first_layer, buffer.layer);
    term.last_layer = std::max<int>(term.last_layer, buffer.layer);
  }
  Terms terms;
  for (auto& [key, term] : found) terms.push_back(std::move(term));
  largest_first(terms);
  return terms;
}

/// Buffers on the device after ops [0, end).
std::vector<BufferId> alive_after(const RankProgram& program, OpId end) {
  std::vector<bool> alive(program.buffers.size());
  for (OpId id = 0; id < end; ++id) {
    if (const auto* alloc = std::get_if<Alloc>(&program.ops[id].action)) alive[alloc->buffer] = true;
    if (const auto* free = std::get_if<Free>(&program.ops[id].action)) alive[free->buffer] = false;
  }
  std::vector<BufferId> buffers;
  for (BufferId id = 0; id < alive.size(); ++id)
    if (alive[id]) buffers.push_back(id);
  return buffers;
}

Term part(std::string name, Bytes bytes, std::string formula = {}) {
  Term term;
  term.name = std::move(name);
  term.formula = std::move(formula);
  term.value = bytes.count;
  return term;
}

/// What the blocks hold beyond the rounded sizes, so that the terms sum to the value.
void add_slack(ExplainedNumber& number) {
  std::int64_t sum = 0;
  for (const Term& term : number.terms) sum += term.value;
  if (sum != number.value)
    number.terms.push_back(part("allocator_slack", Bytes(number.value - sum), "ends of blocks too small to split off"));
}

using Maker = std::function<void(ExplainedNumber&)>;
using Makers = std::map<std::string, Maker>;

void add_gpu(Makers& makers, const Evaluation& evaluation) {
  const Ledger& ledger = evaluation.ledger;
  const RankProgram& program = evaluation.rank_program();
  for (int i = 0; i < category_count; ++i) {
    const auto category = static_cast<Category>(i);
    makers[fmt::format("gpu.categories_at_peak.{}", name_of(category))] = [&, category](ExplainedNumber& number) {
      number.value = ledger.replay.categories_at_peak[static_cast<std::size_t>(category)].count;
      number.formula = "the tensors of this category that are alive at the peak, each rounded up to 512 B";
      number.terms = terms_of(program, ledger.replay.live_at_peak);
      std::erase_if(number.terms, [&](const Term& term) { return term.category != name_of(category); });
    };
  }
  makers["gpu.categories_at_peak.allocator_slack"] = [&](ExplainedNumber& number) {
    number.value = ledger.replay.slack_at_peak.count;
    number.formula = "blocks that the caching allocator did not split, as at most 1 MiB would have been left over";
    number.terms = {part("allocator_slack", ledger.replay.slack_at_peak)};
  };
  makers["gpu.allocated_peak_bytes"] = [&](ExplainedNumber& number) {
    number.value = ledger.allocated_peak.value.count;
    number.formula = fmt::format("sum of the categories at the peak, in {}", ledger.peak_phase);
    for (int i = 0; i < category_count; ++i)
      number.terms.push_back(
          part(name_of(static_cast<Category>(i)), ledger.replay.categories_at_peak[static_cast<std::size_t>(i)]));
    number.terms.push_back(part("allocator_slack", ledger.replay.slack_at_peak));
  };
  makers["gpu.reserved_peak_bytes"] = [&](ExplainedNumber& number) {
    number.value = ledger.reserved_peak.value.count;
    if (const std::optional<Bytes> alive = ledger.replay.alive_in_arena) {
      number.formula = "one arena, laid out beforehand: what is alive at its peak, and what the placement loses";
      number.terms = {part("alive at the peak", *alive), part("between buffers", ledger.reserved_peak.value - *alive)};
      return;
    }
    number.formula = "segments of the caching allocator, replayed on the program's own allocations and frees";
    number.terms = {part("allocated peak", ledger.allocated_peak.value),
                    part("free blocks of its segments", ledger.reserved_peak.value - ledger.allocated_peak.value)};
  };
  const auto device = [&](const char* of_pool, Bytes reserved, ExplainedNumber& number) {
    number.value = (reserved + ledger.outside.total()).count;
    number.formula = "reserved + what the process holds beside the framework's pool";
    number.terms = {part(of_pool, reserved), part("CUDA context and kernels", ledger.outside.context),
                    part("NCCL", ledger.outside.nccl), part("engine's libraries", ledger.outside.libraries)};
  };
  makers["gpu.device_peak_bytes"] = [&, device](ExplainedNumber& number) {
    device("reserved peak", ledger.reserved_peak.value, number);
  };
  makers["gpu.job_device_peak_bytes"] = [&, device](ExplainedNumber& number) {
    device("reserved peak of the job", ledger.replay.job_reserved_peak, number);
  };
  makers["gpu.resident_bytes"] = [&](ExplainedNumber& number) {
    number.value = ledger.replay.resident.count;
    number.formula = "the tensors that are alive when a steady step has ended";
    number.terms = terms_of(program, alive_after(program, program.steady_end));
    add_slack(number);
  };
}

void add_outside(Makers& makers, const Ledger& ledger) {
  const auto constant = [&](const char* name, Bytes bytes, const char* what) {
    makers[fmt::format("gpu.outside_framework.{}", name)] = [bytes, what, &ledger](ExplainedNumber& number) {
      number.value = bytes.count;
      number.formula = fmt::format("{} ({})", what, name_of(ledger.outside.evidence));
      number.terms = {part(what, bytes)};
    };
  };
  constant("context", ledger.outside.context, "CUDA context and the kernels that are loaded");
  constant("nccl", ledger.outside.nccl, "channels of the communicators that have run a collective");
  constant("libraries", ledger.outside.libraries,
           "further code and streams of the engine, workspaces outside its pool");
  makers["margin_bytes"] = [&](ExplainedNumber& number) {
    number.value = ledger.margin.count;
    number.formula = "capacity - device peak of the job";
    number.terms = {part("capacity", ledger.capacity),
                    part("device peak of the job", Bytes(0) - ledger.job_device_peak.value)};
  };
}

void add_phases(Makers& makers, const Evaluation& evaluation) {
  const RankProgram& program = evaluation.rank_program();
  for (const PhaseMemory& phase : evaluation.ledger.replay.phases) {
    const auto span = std::find_if(program.phases.rbegin(), program.phases.rend(),
                                   [&](const PhaseSpan& s) { return phase.name == s.name; });
    if (span == program.phases.rend()) continue;
    const auto tensors = [&program](Bytes value, OpId end, const char* when) {
      return [&program, value, end, when](ExplainedNumber& number) {
        number.value = value.count;
        number.formula = fmt::format("the tensors that are alive {}", when);
        number.terms = terms_of(program, alive_after(program, end));
        add_slack(number);
      };
    };
    const std::string prefix = fmt::format("phases.{}.", phase.name);
    makers[prefix + "allocated_end_bytes"] = tensors(phase.allocated_end, span->end, "when the phase ends");
    makers[prefix + "allocated_peak_bytes"] = tensors(phase.allocated_peak, phase.peak_op + 1, "at the phase's peak");
  }
}

void add_host(Makers& makers, const Evaluation& evaluation) {
  const Ledger& ledger = evaluation.ledger;
  makers["host.per_node_bytes"] = [&](ExplainedNumber& number) {
    const int ranks = evaluation.context.ranks_per_node;
    number.value = ledger.host_per_node.count;
    number.formula = fmt::format("{} ranks, each at its highest; mapped libraries are shared", ranks);
    Bytes sum;
    for (const auto& [name, bytes] : ledger.host_categories) {
      number.terms.push_back(part(name, bytes * std::int64_t{ranks}, fmt::format("{} x {} B", ranks, bytes.count)));
      sum += bytes * std::int64_t{ranks};
    }
    number.terms.push_back(part("shared libraries, counted once", ledger.host_per_node - sum));
  };
  for (const auto& [name, bytes] : ledger.host_categories) {
    makers["host.categories." + name] = [name = name, bytes = bytes](ExplainedNumber& number) {
      number.value = bytes.count;
      number.formula = "of one rank, in the phase in which its host memory is highest";
      number.terms = {part(name, bytes)};
    };
  }
}

void add_capacities(Makers& makers, const Evaluation& evaluation) {
  const auto given = [&](const char* name, Bytes bytes, const char* what) {
    makers[name] = [bytes, what](ExplainedNumber& number) {
      number.value = bytes.count;
      number.formula = what;
      number.terms = {part(what, bytes)};
    };
  };
  given("capacity_bytes", evaluation.ledger.capacity, "memory of the device, of the cluster's file or preset");
  given("host.capacity_bytes", evaluation.ledger.host_capacity, "memory of a node, of the cluster's file or preset");
}

void add_checkpoint(Makers& makers, const Evaluation& evaluation) {
  makers["checkpoint.total_bytes"] = [&](ExplainedNumber& number) {
    number.formula = "the files that saving writes, of all ranks";
    for (const CheckpointFile& file : checkpoint_files(evaluation.scenario)) {
      number.value += file.bytes.count;
      number.terms.push_back(part(file.name, file.bytes));
    }
  };
}

/// A parameter of the model, or one that the engine made in its place.
struct Counted {
  ParameterDecl decl;
  std::int64_t numel = 0;
  std::int64_t active = 0;  ///< of them, those that one token passes
};

using CountedParameters = std::vector<Counted>;

CountedParameters counted_parameters(const Scenario& scenario) {
  CountedParameters counted;
  const auto add = [&](const ParameterDecl& decl, std::int64_t numel) {
    const auto moe = decl.expert ? moe_of_layer(scenario, static_cast<std::size_t>(decl.layer)) : std::nullopt;
    counted.push_back({decl, numel, moe ? numel * moe->top_k / moe->experts : numel});
  };
  if (scenario.plan.moe.num_experts.empty()) {
    for (const ParameterDecl& decl : scenario.model.parameters) add(decl, decl.numel);
    return counted;
  }
  Scenario whole = scenario;  // without expert parallelism a rank holds every expert
  whole.plan.expert_parallel = 1;
  const auto modules = build_modules(whole);
  for (const Parameter& parameter : modules->parameters_in_order) add(*parameter.decl, parameter.numel());
  return counted;
}

/// "model.layers.3.mlp..." of every layer is one term.
std::string name_over_layers(const ParameterDecl& decl) {
  std::string name = decl.name;
  const std::string layer = fmt::format(".{}.", decl.layer);
  if (const auto at = name.find(layer); decl.layer >= 0 && at != std::string::npos)
    name.replace(at, layer.size(), ".*.");
  return name;
}

/// @param share how many of a parameter's elements count
template <class Share>
Maker sum_of_parameters(const Scenario& scenario, const char* what, std::int64_t value, Share share) {
  return [&scenario, what, value, share](ExplainedNumber& number) {
    number.unit = "parameters";
    number.formula = what;
    number.value = value;
    std::map<std::string, Term> found;
    for (const Counted& counted : counted_parameters(scenario)) {
      const std::int64_t elements = share(counted);
      if (elements == 0) continue;
      const ParameterDecl& decl = counted.decl;
      const std::string name = name_over_layers(decl);
      const auto [at, is_new] = found.try_emplace(name);
      Term& term = at->second;
      if (is_new) term = {name, {}, decl.expert ? "expert" : "dense", 0, 0, decl.layer, decl.layer};
      ++term.count;
      term.value += elements;
      term.last_layer = std::max(term.last_layer, decl.layer);
    }
    for (auto& [name, term] : found) number.terms.push_back(std::move(term));
    largest_first(number.terms);
  };
}

void add_parameters(Makers& makers, const Evaluation& evaluation) {
  const Scenario& scenario = evaluation.scenario;
  const ParameterCounts counts = parameters_of(scenario);
  const auto add = [&](const char* name, std::int64_t value, const char* what, auto share) {
    makers[fmt::format("parameters.{}", name)] = sum_of_parameters(scenario, what, value, share);
  };
  add("total", counts.total, "every parameter of the model", [](const Counted& c) { return c.numel; });
  add("dense", counts.dense, "every parameter but the routed experts'",
      [](const Counted& c) { return c.decl.expert ? 0 : c.numel; });
  add("expert", counts.expert, "the routed experts' parameters",
      [](const Counted& c) { return c.decl.expert ? c.numel : 0; });
  add("active", counts.active, "what one token passes: of the routed experts top_k of all",
      [](const Counted& c) { return c.active; });
  const bool tied = scenario.model.tied_embeddings;
  add("active_without_embedding", counts.active_without_embedding,
      "what one token passes, but for the embedding unless it is the head too",
      [tied](const Counted& c) { return c.decl.role == Role::embedding && !tied ? 0 : c.active; });
  add("active_without_embedding_and_head", counts.active_without_embedding_and_head,
      "what one token passes, but for embedding and head", [](const Counted& c) {
        const Role role = c.decl.role;
        return role == Role::embedding || role == Role::head || role == Role::head_bias ? 0 : c.active;
      });
}

void add_volumes(Makers& makers, const Evaluation& evaluation) {
  makers["per_gpu_bytes_per_step"] = [&](ExplainedNumber& number) {
    const CommVolume volume =
        account_volume(evaluation.program, evaluation.rank_program(), evaluation.scenario.cluster);
    number.value = volume.per_gpu.count;
    number.formula =
        "sum of the collectives of one optimizer step; a ring of n sends (n-1)/n of the full size, an "
        "all-reduce twice that";
    for (const VolumeRow& row : volume.rows) {
      Term term = part(fmt::format("{} {} {} {}", row.kind, row.group, row.phase, name_of(row.tier)), row.wire,
                       fmt::format("full size {} B {}", row.full_size.count, name_of(row.dtype)));
      term.count = static_cast<int>(row.calls);
      number.terms.push_back(std::move(term));
    }
    largest_first(number.terms);
  };
}

Makers makers_of(const Evaluation& evaluation) {
  Makers makers;
  add_gpu(makers, evaluation);
  add_outside(makers, evaluation.ledger);
  add_phases(makers, evaluation);
  add_capacities(makers, evaluation);
  add_host(makers, evaluation);
  add_checkpoint(makers, evaluation);
  add_parameters(makers, evaluation);
  add_volumes(makers, evaluation);
  return makers;
}

}  // namespace

std::vector<std::string> number_names(const Evaluation& evaluation) {
  std::vector<std::string> names;
  for (const auto& [name, maker] : makers_of(evaluation)) names.push_back(name);
  return names;
}

Result<ExplainedNumber> explain_number(const Evaluation& evaluation, std::string_view name) {
  const Makers makers = makers_of(evaluation);
  const auto maker = makers.find(std::string(name));
  if (maker == makers.end()) {
    const std::vector<std::string> names = number_names(evaluation);
    Diagnostic diagnostic;
    diagnostic.code = "cli.number";
    diagnostic.message = fmt::format("there is no number {}", name);
    const auto near = nearest(name, names);
    diagnostic.help =
        fmt::format("{}known: {}", near ? fmt::format("did you mean {}? ", *near) : "", fmt::join(names, ", "));
    return diagnostic;
  }
  ExplainedNumber number;
  number.name = name;
  number.unit = "B";
  maker->second(number);
  return number;
}

ExplainedNumber explain_peak(const Evaluation& evaluation, Bytes least) {
  const Ledger& ledger = evaluation.ledger;
  ExplainedNumber number;
  number.name = "gpu.allocated_peak_bytes";
  number.value = ledger.allocated_peak.value.count;
  number.unit = "B";
  number.formula = fmt::format("the tensors that are alive at the peak, in {}", ledger.peak_phase);
  number.terms = terms_of(evaluation.rank_program(), ledger.replay.live_at_peak);
  const auto smaller = std::stable_partition(number.terms.begin(), number.terms.end(),
                                             [&](const Term& term) { return term.value >= term.count * least.count; });
  Bytes rest;
  int count = 0;
  for (auto term = smaller; term != number.terms.end(); ++term) {
    rest += Bytes(term->value);
    count += term->count;
  }
  number.terms.erase(smaller, number.terms.end());
  if (count > 0) {
    number.terms.push_back(part(fmt::format("tensors below {}", format(least)), rest));
    number.terms.back().count = count;
  }
  number.terms.push_back(part("allocator_slack", ledger.replay.slack_at_peak));
  return number;
}

}  // namespace plimsoll
