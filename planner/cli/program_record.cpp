// The program's steady step as a list of allocations and frees (planner/cli/trace_comparison.hpp).
#include <algorithm>
#include <deque>
#include <map>
#include <tuple>

#include "planner/cli/trace_comparison.hpp"

namespace plimsoll {
namespace {

class Recorder {
 public:
  explicit Recorder(const RankProgram& program) : program_(program) {}

  ProgramRecord run(int steps) {
    record_.record.name = "the program";
    walk(0, program_.steady_first);
    record_.record.live_before = live_;
    recording_ = true;
    for (auto& [key, waiting] : by_key_) {
      for (Instance& instance : waiting) instance.id = AllocatorEvent::before;
    }
    for (int step = 0; step < steps; ++step) walk_step();
    return std::move(record_);
  }

 private:
  using Key = std::tuple<std::int64_t, std::string_view, Lane, int>;
  struct Instance {
    BufferId buffer;
    std::int64_t id;
  };

  Key key_of(BufferId id) const {
    const BufferDecl& b = program_.buffers[id];
    return {b.size.count, b.name, b.pool, b.layer};
  }

  void walk_step() {
    OpId next = program_.steady_first;
    for (const Repeat& repeat : program_.repeats) {
      if (repeat.first < next || repeat.end > program_.steady_end) continue;
      walk(next, repeat.first);
      for (std::int64_t i = 0; i < repeat.count; ++i) walk(repeat.first, repeat.end);
      next = repeat.end;
    }
    walk(next, program_.steady_end);
  }

  void walk(OpId first, OpId end) {
    for (OpId id = first; id < end; ++id) {
      const Action& action = program_.ops[id].action;
      if (const auto* alloc = std::get_if<Alloc>(&action)) {
        take(id, alloc->buffer, true);
      } else if (const auto* free = std::get_if<Free>(&action)) {
        take(id, free->buffer, false);
      }
    }
  }

  void take(OpId op, BufferId buffer, bool is_alloc) {
    const BufferDecl& decl = program_.buffers[buffer];
    if (decl.pool == Lane::host) return;
    std::deque<Instance>& alive = by_key_[key_of(buffer)];
    std::int64_t id = next_id_;
    const Bytes block(std::max<std::int64_t>(512, round_up(decl.size.count, 512)));
    if (is_alloc) {
      alive.push_back({buffer, next_id_++});
      live_ += block;
    } else {
      if (alive.empty()) return;
      // The buffer itself, or in a repeated range the equal one that the run before has left.
      auto found = std::find_if(alive.begin(), alive.end(), [&](const Instance& i) { return i.buffer == buffer; });
      if (found == alive.end()) found = alive.begin();
      id = found->id;
      alive.erase(found);
      live_ -= block;
    }
    if (!recording_) return;
    record_.record.events.push_back({is_alloc, label_of(decl), decl.size.count, id});
    record_.buffers.push_back(buffer);
    record_.phase.push_back(phase_of(op));
  }

  std::int32_t label_of(const BufferDecl& decl) {
    const auto [found, is_new] = labels_.emplace(decl.name, static_cast<std::int32_t>(labels_.size()));
    if (is_new) record_.record.labels.emplace_back(decl.name);
    return found->second;
  }

  std::uint16_t phase_of(OpId op) {
    if (op < phase_first_ || op >= phase_end_) {
      phase_first_ = op;
      phase_end_ = op + 1;
      std::string name = "between phases";
      for (const PhaseSpan& span : program_.phases) {
        if (op < span.first || op >= span.end) continue;
        phase_first_ = span.first;
        phase_end_ = span.end;
        name = span.name;
      }
      const auto found = std::find(record_.phases.begin(), record_.phases.end(), name);
      phase_ = static_cast<std::uint16_t>(found - record_.phases.begin());
      if (found == record_.phases.end()) record_.phases.push_back(std::move(name));
    }
    return phase_;
  }

  const RankProgram& program_;
  ProgramRecord record_;
  std::map<Key, std::deque<Instance>> by_key_;  ///< alive, oldest first
  std::map<std::string_view, std::int32_t> labels_;
  std::int64_t next_id_ = 0;
  Bytes live_;
  bool recording_ = false;
  OpId phase_first_ = 1, phase_end_ = 0;
  std::uint16_t phase_ = 0;
};

}  // namespace

ProgramRecord record_of(const RankProgram& program, int steps) { return Recorder(program).run(steps); }

}  // namespace plimsoll
