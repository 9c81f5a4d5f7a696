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

/// The ops between which each buffer is alive.
class Lives {
 public:
  explicit Lives(const RankProgram& program)
      : program_(program), made_(program.buffers.size(), never), freed_(program.buffers.size(), never) {}

  void take(OpId id, const Op& op) {
    if (const auto* alloc = std::get_if<Alloc>(&op.action)) made_[alloc->buffer] = id;
    if (const auto* free = std::get_if<Free>(&op.action)) freed_[free->buffer] = id;
  }
  std::vector<BufferId> after(OpId id) const {
    std::vector<BufferId> alive;
    for (BufferId buffer = 0; buffer < made_.size(); ++buffer)
      if (made_[buffer] <= id && freed_[buffer] > id && program_.buffers[buffer].pool != Lane::host)
        alive.push_back(buffer);
    return alive;
  }

 private:
  static constexpr OpId never = ~OpId{0};
  const RankProgram& program_;
  std::vector<OpId> made_, freed_;
};

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
    // A peak is what an allocation has reached, or what a phase began with: then it is before its first op, where that frees.
    const bool frees = std::holds_alternative<Free>(program.ops[id].action);
    if (!frees) live.take(program.ops[id]);
    for (; next != wanted.end() && next->first == id; ++next) result[next->second].categories = live.categories();
    if (frees) live.take(program.ops[id]);
  }
  return result;
}

SizeReplay replay_sizes(const RankProgram& program) {
  SizeReplay result;
  Replay& replay = result.replay;
  Live live(program);
  Lives lives(program);
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
        result.categories.push_back({name, live.categories()});
      }
    }
    PhaseMemory& phase = replay.phases.back();
    const Op& op = program.ops[id];
    lives.take(id, op);
    if (live.take(op)) {
      if (live.sum() > phase.allocated_peak) {
        phase.allocated_peak = phase.requested_peak = live.sum();
        phase.peak_op = id;
        result.categories.back().categories = live.categories();
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
  replay.live_at_peak = lives.after(replay.peak_op);
  return result;
}

}  // namespace plimsoll
