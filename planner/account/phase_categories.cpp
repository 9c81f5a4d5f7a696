// Walks over the job's Alloc and Free events (planner/account/phase_categories.hpp).
#include "planner/account/phase_categories.hpp"

#include <algorithm>
#include <numeric>

namespace plimsoll {
namespace {

Bytes rounded(const BufferDecl& buffer) {
  constexpr std::int64_t unit = 512;
  return Bytes(std::max(unit, round_up(buffer.size.count, unit)));
}

/// Sums of what is alive, by category.
class Live {
 public:
  explicit Live(const RankProgram& program) : program_(program) {}

  /// True if the op has allocated memory of the device.
  bool take(const Op& op) {
    if (const auto* alloc = std::get_if<Alloc>(&op.action)) return change(alloc->buffer, 1);
    if (const auto* free = std::get_if<Free>(&op.action)) change(free->buffer, -1);
    return false;
  }
  const std::array<Bytes, category_count>& categories() const { return categories_; }
  Bytes sum() const { return sum_; }

 private:
  bool change(BufferId id, std::int64_t sign) {
    const BufferDecl& buffer = program_.buffers[id];
    if (buffer.pool == Lane::host) return false;
    const Bytes size = rounded(buffer) * sign;
    categories_[static_cast<std::size_t>(buffer.category)] += size;
    sum_ += size;
    return true;
  }

  const RankProgram& program_;
  std::array<Bytes, category_count> categories_{};
  Bytes sum_;
};

void list_live(const RankProgram& program, Replay& replay) {
  std::vector<bool> alive(program.buffers.size());
  for (OpId id = 0; id <= replay.peak_op && id < program.ops.size(); ++id) {
    if (const auto* alloc = std::get_if<Alloc>(&program.ops[id].action)) {
      alive[alloc->buffer] = true;
    } else if (const auto* free = std::get_if<Free>(&program.ops[id].action)) {
      alive[free->buffer] = false;
    }
  }
  for (BufferId id = 0; id < alive.size(); ++id)
    if (alive[id] && program.buffers[id].pool != Lane::host) replay.live_at_peak.push_back(id);
}

}  // namespace

Bytes PhaseCategories::total() const { return std::accumulate(categories.begin(), categories.end(), Bytes(0)); }

std::vector<PhaseCategories> categories_by_phase(const RankProgram& program, const Replay& replay) {
  std::vector<PhaseCategories> result;
  std::vector<std::pair<OpId, std::size_t>> wanted;
  for (const PhaseMemory& phase : replay.phases) {
    wanted.emplace_back(phase.peak_op, result.size());
    result.push_back({phase.name, {}});
  }
  std::sort(wanted.begin(), wanted.end());
  Live live(program);
  auto next = wanted.begin();
  for (OpId id = 0; id < program.ops.size() && next != wanted.end(); ++id) {
    live.take(program.ops[id]);
    for (; next != wanted.end() && next->first == id; ++next) result[next->second].categories = live.categories();
  }
  return result;
}

Replay replay_sizes(const RankProgram& program) {
  Replay replay;
  Live live(program);
  std::size_t span = 0;
  OpId same_until = 0;  // ops before it belong to the phase at the back: names are compared once a span
  for (OpId id = 0; id < program.ops.size(); ++id) {
    if (id >= same_until) {
      while (span < program.phases.size() && id >= program.phases[span].end) ++span;
      const bool ends = span == program.phases.size(), known = !ends && id >= program.phases[span].first;
      const char* name = known ? program.phases[span].name : "between phases";
      same_until = known  ? program.phases[span].end
                   : ends ? static_cast<OpId>(program.ops.size())
                          : program.phases[span].first;
      if (replay.phases.empty() || replay.phases.back().name != name) {
        replay.phases.push_back({});
        replay.phases.back().name = name;
        replay.phases.back().allocated_peak = live.sum();
        replay.phases.back().peak_op = id;
      }
    }
    PhaseMemory& phase = replay.phases.back();
    if (live.take(program.ops[id])) {
      if (live.sum() > phase.allocated_peak) {
        phase.allocated_peak = phase.requested_peak = live.sum();
        phase.peak_op = id;
      }
      if (id >= program.steady_first && id < program.steady_end && live.sum() > replay.allocated_peak) {
        replay.allocated_peak = live.sum();
        replay.peak_op = id;
        replay.peak_phase = phase.name;
        replay.categories_at_peak = live.categories();
      }
    }
    phase.allocated_end = live.sum();
    if (id + 1 == program.steady_end) replay.resident = live.sum();
  }
  list_live(program, replay);
  return replay;
}

}  // namespace plimsoll
