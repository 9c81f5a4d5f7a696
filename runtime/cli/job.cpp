// Reads and checks a job (runtime/cli/job.hpp).
#include "runtime/cli/job.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "planner/base/format.hpp"
#include "planner/spec/check_configuration.hpp"
#include "planner/spec/read_cluster.hpp"
#include "planner/spec/read_model.hpp"

namespace plimsoll {

namespace {

void print(const Diagnostics& diagnostics) {
  for (const Diagnostic& diagnostic : diagnostics) {
    if (diagnostic.severity == Severity::note) continue;
    fmt::print(stderr, "{}\n", format(diagnostic, isatty(STDERR_FILENO) != 0));
  }
}

}  // namespace

std::optional<Scenario> load_job(const RunOptions& options) {
  const Result<ModelSpec> model = load_model(options.model);
  const Result<ClusterSpec> cluster = load_cluster(options.cluster);
  print(model.diagnostics());
  print(cluster.diagnostics());
  ConfigurationInput input;
  if (!options.plan.empty()) input.file = load_source(options.plan);
  // Without a word in the plan, the engine is the one that this program is.
  const bool stated = input.file && input.file->text.find("\"engine\"") != std::string::npos;
  if (!stated) input.overrides.emplace_back("engine=plimsoll");
  input.overrides.insert(input.overrides.end(), options.sets.begin(), options.sets.end());
  input.model = model ? &*model : nullptr;
  input.cluster = cluster ? &*cluster : nullptr;
  CheckReport report = check_configuration(input);
  print(report.diagnostics);
  if (!model || !cluster || !report.plan) return std::nullopt;
  if (report.plan->engine != Engine::plimsoll) {
    print({make_error(
        "run.engine",
        fmt::format("the plan is for engine {}; this program runs engine plimsoll", name_of(report.plan->engine)),
        "--set engine=plimsoll")});
    return std::nullopt;
  }
  if (!model->numerics.rope_unknown.empty()) {
    print({make_error("run.rope", fmt::format("rotary scaling {} is not computed", model->numerics.rope_unknown),
                      "rope_scaling null, or of type llama3")});
    return std::nullopt;
  }
  return Scenario{*model, *cluster, *report.plan};
}

std::string ledger_in_words(const RankProgram& rank, const ArenaPlan& arena) {
  std::array<std::int64_t, category_count> live{}, peak{};
  std::int64_t sum = 0, most = 0;
  for (const Op& op : rank.ops) {
    const auto* alloc = std::get_if<Alloc>(&op.action);
    const auto* free = std::get_if<Free>(&op.action);
    if (!alloc && !free) continue;
    const BufferDecl& buffer = rank.buffers[alloc ? alloc->buffer : free->buffer];
    if (buffer.pool == Lane::host) continue;
    const std::int64_t change = round_up(buffer.size.count, 512) * (alloc ? 1 : -1);
    live[static_cast<std::size_t>(buffer.category)] += change;
    sum += change;
    if (sum > most) {
      most = sum;
      peak = live;
    }
  }
  std::vector<std::pair<std::int64_t, std::string>> rows;
  for (std::size_t i = 0; i < peak.size(); ++i) {
    if (peak[i] > 0) rows.emplace_back(peak[i], name_of(static_cast<Category>(i)));
  }
  std::sort(rows.rbegin(), rows.rend());
  rows.emplace_back(arena.size.count - most, "between buffers");
  std::string text;
  for (const auto& [bytes, name] : rows) text += fmt::format("  {:<24}{:>12}\n", name, format(Bytes(bytes)));
  return text + fmt::format("  {:<24}{:>12}\n", "arena of a rank", format(arena.size));
}

bool fits(const Scenario& scenario, const StepProgram& program, const ArenaPlan& arena, bool on_host, int processes) {
  Bytes room = scenario.cluster.device.memory;
  std::string where = fmt::format("a device of {}", format(room));
  Bytes needed = arena.size;
  if (needed <= room && on_host) {
    room = Bytes(std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE));
    where = fmt::format("this host's {}, {} of which are its ranks'", format(room), processes);
    needed = Bytes(arena.size.count * processes);
  }
  if (needed <= room) return true;
  print({make_error("run.memory", fmt::format("the plan does not fit: {} is more than {}", format(needed), where),
                    "plimsoll ledger names the smallest change that fits")});
  fmt::print(stderr, "{}", ledger_in_words(program.classes.front().program, arena));
  return false;
}

}  // namespace plimsoll
