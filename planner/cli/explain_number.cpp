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
  constant("context", ledger.outside.context, "CUDA context and the kernels that PyTorch loads");
  constant("nccl", ledger.outside.nccl, "channels of the communicators that have run a collective");
  constant("libraries", ledger.outside.libraries, "further code and streams of the engine");
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
}

void add_parameters(Makers& makers, const Evaluation& evaluation) {
  const ModelSpec& model = evaluation.scenario.model;
  const auto sum = [&model](const char* what, auto counts) {
    return [&model, what, counts](ExplainedNumber& number) {
      number.unit = "parameters";
      number.formula = what;
      std::map<std::string, Term> found;
      for (const ParameterDecl& parameter : model.parameters) {
        if (!counts(parameter)) continue;
        std::string name = parameter.name;  // "model.layers.3.mlp..." of every layer is one term
        const std::string layer = fmt::format(".{}.", parameter.layer);
        if (const auto at = name.find(layer); parameter.layer >= 0 && at != std::string::npos)
          name.replace(at, layer.size(), ".*.");
        Term& term = found[name];
        if (term.value == 0)
          term = {name, {}, parameter.expert ? "expert" : "dense", 0, 0, parameter.layer, parameter.layer};
        ++term.count;
        term.value += parameter.numel;
        term.last_layer = std::max(term.last_layer, parameter.layer);
        number.value += parameter.numel;
      }
      for (auto& [name, term] : found) number.terms.push_back(std::move(term));
      largest_first(number.terms);
    };
  };
  makers["parameters.total"] = sum("every parameter of the model", [](const ParameterDecl&) { return true; });
  makers["parameters.dense"] =
      sum("every parameter but the routed experts'", [](const ParameterDecl& p) { return !p.expert; });
  makers["parameters.expert"] = sum("the routed experts' parameters", [](const ParameterDecl& p) { return p.expert; });
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
  add_host(makers, evaluation);
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
