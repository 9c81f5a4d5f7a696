// The terms behind each number of the step program's memory and volumes (planner/cli/explain_number.hpp).  A number of bytes
// on the device is a sum over the tensors alive at one op, each rounded up to the allocator's 512 bytes, plus what its blocks
// keep beyond that; on the host, of the process itself, pageable tensors, and pinned ones in blocks of a power of two.
#include "planner/cli/explain_number.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "planner/account/volume.hpp"
#include "planner/base/format.hpp"
#include "planner/cli/explain_makers.hpp"

namespace plimsoll {
namespace {

constexpr std::int64_t block = 512;

using Terms = std::vector<Term>;

enum class Memory : std::uint8_t { device, pinned, pageable };

Memory memory_of(const BufferDecl& buffer) {
  if (buffer.pool != Lane::host) return Memory::device;
  return buffer.pinned ? Memory::pinned : Memory::pageable;
}

/// What a buffer takes of its memory.
std::int64_t taken_by(const BufferDecl& buffer) {
  switch (memory_of(buffer)) {
    case Memory::device: return round_up(std::max<std::int64_t>(buffer.size.count, 1), block);
    case Memory::pinned: return pinned_block(buffer).count;
    case Memory::pageable: break;
  }
  return buffer.size.count;
}

/// Of the buffers those in one memory; equal tensors of several layers are one term.
Terms terms_of(const RankProgram& program, const std::vector<BufferId>& buffers, Memory memory = Memory::device) {
  std::map<std::tuple<std::string, std::int64_t, Category>, Term> found;
  for (const BufferId id : buffers) {
    const BufferDecl& buffer = program.buffers[id];
    if (memory_of(buffer) != memory) continue;
    const auto [at, is_new] = found.try_emplace({buffer.name, buffer.size.count, buffer.category});
    Term& term = at->second;
    if (is_new) term = {buffer.name, formula_of(buffer), name_of(buffer.category), 0, 0, buffer.layer, buffer.layer};
    ++term.count;
    term.value += taken_by(buffer);
    term.first_layer = std::min<int>(term.first_layer, buffer.layer);
    term.last_layer = std::max<int>(term.last_layer, buffer.layer);
  }
  Terms terms;
  for (auto& [key, term] : found) terms.push_back(std::move(term));
  sort_largest_first(terms);
  return terms;
}

/// Buffers alive after ops [0, end).
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

/// What the terms lack of the value, as one more.
void add_rest(ExplainedNumber& number, const char* name, const char* formula) {
  std::int64_t sum = 0;
  for (const Term& term : number.terms) sum += term.value;
  if (sum != number.value) number.terms.push_back(term_of(name, Bytes(number.value - sum), formula));
}

void add_slack(ExplainedNumber& number) {
  add_rest(number, "allocator_slack", "ends of blocks too small to split off");
}

void add_gpu(NumberMakers& makers, const Evaluation& evaluation) {
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
    number.terms = {term_of("allocator_slack", ledger.replay.slack_at_peak)};
  };
  makers["gpu.allocated_peak_bytes"] = [&](ExplainedNumber& number) {
    number.value = ledger.allocated_peak.value.count;
    number.formula = fmt::format("sum of the categories at the peak, in {}", ledger.peak_phase);
    for (int i = 0; i < category_count; ++i)
      number.terms.push_back(
          term_of(name_of(static_cast<Category>(i)), ledger.replay.categories_at_peak[static_cast<std::size_t>(i)]));
    number.terms.push_back(term_of("allocator_slack", ledger.replay.slack_at_peak));
  };
  makers["gpu.reserved_peak_bytes"] = [&](ExplainedNumber& number) {
    number.value = ledger.reserved_peak.value.count;
    if (const std::optional<Bytes> alive = ledger.replay.alive_in_arena) {
      number.formula = "one arena, laid out beforehand: what is alive at its peak, and what the placement loses";
      number.terms = {term_of("alive at the peak", *alive),
                      term_of("between buffers", ledger.reserved_peak.value - *alive)};
      return;
    }
    number.formula = "segments of the caching allocator, replayed on the program's own allocations and frees";
    number.terms = {term_of("allocated peak", ledger.allocated_peak.value),
                    term_of("free blocks of its segments", ledger.reserved_peak.value - ledger.allocated_peak.value)};
  };
  const auto device = [&](const char* of_pool, Bytes reserved, ExplainedNumber& number) {
    number.value = (reserved + ledger.outside.total()).count;
    number.formula = "reserved + what the process holds beside the framework's pool";
    number.terms = {term_of(of_pool, reserved), term_of("CUDA context and kernels", ledger.outside.context),
                    term_of("NCCL", ledger.outside.nccl), term_of("engine's libraries", ledger.outside.libraries)};
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

void add_outside(NumberMakers& makers, const Ledger& ledger) {
  const auto constant = [&](const char* name, Bytes bytes, const char* what) {
    makers[fmt::format("gpu.outside_framework.{}", name)] = [bytes, what, &ledger](ExplainedNumber& number) {
      number.value = bytes.count;
      number.formula = fmt::format("{} ({})", what, name_of(ledger.outside.evidence));
      number.terms = {term_of(what, bytes)};
    };
  };
  constant("context", ledger.outside.context, "CUDA context and the kernels that are loaded");
  constant("nccl", ledger.outside.nccl, "channels of the communicators that have run a collective");
  constant("libraries", ledger.outside.libraries,
           "further code and streams of the engine, workspaces outside its pool");
  makers["margin_bytes"] = [&](ExplainedNumber& number) {
    number.value = ledger.margin.count;
    number.formula = "capacity - device peak of the job";
    number.terms = {term_of("capacity", ledger.capacity),
                    term_of("device peak of the job", Bytes(0) - ledger.job_device_peak.value)};
  };
}

/// From the value of a figure to the two ends between which it may lie, [0] and [1] in the JSON: what the plan does not fix was
/// replayed, the rest is a margin.
void add_bound(NumberMakers& makers, const std::string& name, const Evaluation& evaluation, const Figure& figure,
               Bytes beyond) {
  const auto add = [&](int at, Bytes bound, Bytes replayed, Bytes measured_beyond) {
    makers[fmt::format("{}[{}]", name, at)] = [&, bound, replayed, measured_beyond](ExplainedNumber& number) {
      const bool gathers = evaluation.context.unknown == LedgerContext::Unknown::lateness;
      number.value = bound.count;
      number.formula = "the figure, and how far off it may be by what the plan does not fix";
      number.terms = {term_of("the figure itself", figure.value)};
      const auto more = [&](const char* what, Bytes bytes, const char* why) {
        if (bytes.count != 0) number.terms.push_back(term_of(what, bytes, why));
      };
      more(gathers ? "gathered weights that come back otherwise late" : "another past of the allocator's pool",
           replayed - figure.value, "the replay that is farthest off");
      more("more than that was measured beside the pool", measured_beyond, "at most");
      add_rest(number, "routing that changes from step to step", "a measured margin");
    };
  };
  add(0, figure.interval.low, figure.replayed.low, Bytes(0));
  add(1, figure.interval.high, figure.replayed.high, beyond);
}

void add_bounds(NumberMakers& makers, const Evaluation& evaluation) {
  const Ledger& ledger = evaluation.ledger;
  const Bytes beyond = ledger.outside.beyond;
  add_bound(makers, "gpu.interval_bytes.allocated", evaluation, ledger.allocated_peak, Bytes(0));
  add_bound(makers, "gpu.interval_bytes.reserved", evaluation, ledger.reserved_peak, Bytes(0));
  add_bound(makers, "gpu.interval_bytes.device", evaluation, ledger.device_peak, beyond);
  add_bound(makers, "gpu.job_device_interval_bytes", evaluation, ledger.job_device_peak, beyond);
}

/// What is reserved in a phase, of which `alive` is allocated.
NumberMaker reserved_of(const Ledger& ledger, Bytes value, Bytes alive, const char* when) {
  const bool in_arena = ledger.replay.alive_in_arena.has_value();
  return [=](ExplainedNumber& number) {
    number.value = value.count;
    number.formula = in_arena
                         ? "one arena, laid out beforehand for the whole job"
                         : "segments of the caching allocator, replayed on the program's own allocations and frees";
    number.terms = {term_of(fmt::format("allocated {}", when), alive),
                    term_of(in_arena ? "the rest of the arena" : "free blocks of its segments", value - alive)};
  };
}

void add_host_of_phase(NumberMakers& makers, const RankProgram& program, const PhaseMemory& phase,
                       const HostPhase& host, OpId end) {
  const std::string prefix = fmt::format("phases.{}.", phase.name);
  const Bytes process = host.resident_end - phase.host_pinned_end - phase.host_unpinned_end;
  const auto resident = [&](const char* name, Bytes value, Bytes pinned, Bytes pageable, const char* when) {
    makers[prefix + name] = [=](ExplainedNumber& number) {
      number.value = value.count;
      number.formula = fmt::format("of one rank, {}: the process itself and its tensors on the host", when);
      number.terms = {term_of("process", process), term_of("pinned", pinned), term_of("pageable", pageable)};
    };
  };
  resident("host_resident_end_bytes", host.resident_end, phase.host_pinned_end, phase.host_unpinned_end,
           "when the phase ends");
  resident("host_resident_peak_bytes", host.resident_peak, phase.host_pinned_at_peak, phase.host_unpinned_at_peak,
           "when it is highest in the phase");
  makers[prefix + "host_pinned_bytes"] = [&program, end, value = host.pinned](ExplainedNumber& number) {
    number.value = value.count;
    number.formula = "the pinned tensors that are alive when the phase ends, each rounded up to a power of two";
    number.terms = terms_of(program, alive_after(program, end), Memory::pinned);
    add_rest(number, "freed blocks", "the allocator of pinned memory keeps them");
  };
}

void add_phases(NumberMakers& makers, const Evaluation& evaluation) {
  const RankProgram& program = evaluation.rank_program();
  const Ledger& ledger = evaluation.ledger;
  for (std::size_t i = 0; i < ledger.replay.phases.size(); ++i) {
    const PhaseMemory& phase = ledger.replay.phases[i];
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
    makers[prefix + "reserved_end_bytes"] = reserved_of(ledger, phase.reserved_end, phase.allocated_end, "at the end");
    makers[prefix + "reserved_peak_bytes"] =
        reserved_of(ledger, phase.reserved_peak, phase.allocated_peak, "at the peak");
    add_host_of_phase(makers, program, phase, ledger.host[i], span->end);
  }
}

void add_host(NumberMakers& makers, const Evaluation& evaluation) {
  const Ledger& ledger = evaluation.ledger;
  makers["host.per_node_bytes"] = [&](ExplainedNumber& number) {
    const int ranks = evaluation.context.ranks_per_node;
    number.value = ledger.host_per_node.count;
    number.formula = fmt::format("{}, each at its highest; mapped libraries are shared", counted(ranks, "rank"));
    Bytes sum;
    for (const auto& [name, bytes] : ledger.host_categories) {
      number.terms.push_back(term_of(name, bytes * std::int64_t{ranks}, fmt::format("{} x {} B", ranks, bytes.count)));
      sum += bytes * std::int64_t{ranks};
    }
    number.terms.push_back(term_of("shared libraries, counted once", ledger.host_per_node - sum));
  };
  for (const auto& [name, bytes] : ledger.host_categories) {
    makers["host.categories." + name] = [name = name, bytes = bytes](ExplainedNumber& number) {
      number.value = bytes.count;
      number.formula = "of one rank, in the phase in which its host memory is highest";
      number.terms = {term_of(name, bytes)};
    };
  }
}

void add_capacities(NumberMakers& makers, const Evaluation& evaluation) {
  const auto given = [&](const char* name, Bytes bytes, const char* what) {
    makers[name] = [bytes, what](ExplainedNumber& number) {
      number.value = bytes.count;
      number.formula = what;
      number.terms = {term_of(what, bytes)};
    };
  };
  given("capacity_bytes", evaluation.ledger.capacity, "memory of the device, of the cluster's file or preset");
  given("host.capacity_bytes", evaluation.ledger.host_capacity, "memory of a node, of the cluster's file or preset");
}

void add_volumes(NumberMakers& makers, const Evaluation& evaluation) {
  makers["per_gpu_bytes_per_step"] = [&](ExplainedNumber& number) {
    const CommVolume volume =
        account_volume(evaluation.program, evaluation.rank_program(), evaluation.scenario.cluster);
    number.value = volume.per_gpu.count;
    bool copies = false;
    for (const VolumeRow& row : volume.rows) {
      const bool copy = row.group == "host";
      copies = copies || copy;
      Term term =
          copy ? term_of(fmt::format("{} {}", row.kind, row.phase), row.wire, fmt::format("{} B", row.full_size.count))
               : term_of(fmt::format("{} {} {} {}", row.kind, row.group, row.phase, name_of(row.tier)), row.wire,
                         fmt::format("full size {} B {}", row.full_size.count, name_of(row.dtype)));
      term.count = static_cast<int>(row.calls);
      number.terms.push_back(std::move(term));
    }
    number.formula = fmt::format(
        "sum of the collectives of one optimizer step (a ring of n sends (n-1)/n of the full size, an all-reduce twice "
        "that){}",
        copies ? " and of the copies between GPU and host" : "");
    sort_largest_first(number.terms);
  };
}

NumberMakers makers_of(const Evaluation& evaluation) {
  NumberMakers makers;
  add_gpu(makers, evaluation);
  add_outside(makers, evaluation.ledger);
  add_bounds(makers, evaluation);
  add_phases(makers, evaluation);
  add_capacities(makers, evaluation);
  add_host(makers, evaluation);
  add_checkpoint(makers, evaluation);
  add_parameters(makers, evaluation);
  add_volumes(makers, evaluation);
  add_rank(makers, evaluation);
  return makers;
}

/// The nearest name; else those that hold the word, or all, where those of each phase and file stand for each other.
std::string advice_on_name(const Evaluation& evaluation, std::string_view name) {
  const std::vector<std::string> names = number_names(evaluation);
  if (const auto near = nearest(name, names)) return fmt::format("did you mean {}?", *near);
  std::vector<std::string> shown, holding;
  for (const std::string& one : names) {
    if (one.find(name) != std::string::npos) holding.push_back(one);
    const bool is_of_a_phase = one.starts_with("phases."), is_of_a_file = one.starts_with("checkpoint.files.");
    if (!is_of_a_phase && !is_of_a_file) shown.push_back(one);
    if (one.starts_with("phases.steady_step.")) shown.push_back("phases.PHASE" + one.substr(one.rfind('.')));
  }
  constexpr std::size_t most_shown = 20;
  if (!holding.empty() && holding.size() <= most_shown) return fmt::format("names: {}", fmt::join(holding, ", "));
  return fmt::format("names: {}, checkpoint.files.FILE.bytes; phases and files are named as in ledger --json",
                     fmt::join(shown, ", "));
}

}  // namespace

Term term_of(std::string name, Bytes bytes, std::string formula) {
  Term term;
  term.name = std::move(name);
  term.formula = std::move(formula);
  term.value = bytes.count;
  return term;
}

void sort_largest_first(Terms& terms) {
  std::stable_sort(terms.begin(), terms.end(), [](const Term& a, const Term& b) { return a.value > b.value; });
}

std::vector<std::string> number_names(const Evaluation& evaluation) {
  std::vector<std::string> names;
  for (const auto& [name, maker] : makers_of(evaluation)) names.push_back(name);
  return names;
}

Result<ExplainedNumber> explain_number(const Evaluation& evaluation, std::string_view name) {
  const NumberMakers makers = makers_of(evaluation);
  const auto maker = makers.find(std::string(name));
  if (maker == makers.end()) {
    return make_error("cli.number", fmt::format("there is no number {}", name), advice_on_name(evaluation, name));
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
    number.terms.push_back(term_of(fmt::format("tensors below {}", format(least)), rest));
    number.terms.back().count = count;
  }
  number.terms.push_back(term_of("allocator_slack", ledger.replay.slack_at_peak));
  return number;
}

}  // namespace plimsoll
