// The checks of planner/step/verify_step.hpp.
#include "planner/step/verify_step.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/strong_components.hpp>
#include <map>

namespace plimsoll {

namespace {

bool takes_time(const Op& op) {
  return !std::holds_alternative<Alloc>(op.action) && !std::holds_alternative<Free>(op.action) &&
         !std::holds_alternative<EmptyCache>(op.action);
}

constexpr std::size_t most_faults = 20;

class Faults {
 public:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    if (lines_.size() < most_faults) lines_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  std::vector<std::string> take() { return std::move(lines_); }

 private:
  std::vector<std::string> lines_;
};

std::string name_op(const RankProgram& program, OpId id) {
  const Op& op = program.ops[id];
  return fmt::format("op {} ({} on {}, layer {})", id, op.role, name_of(op.lane), op.layer);
}

/// Allocated once, used while it is alive, freed at most once.
void check_lifetimes(const RankProgram& program, Faults& faults) {
  enum class State : std::uint8_t { unborn, alive, dead };
  std::vector<State> states(program.buffers.size(), State::unborn);
  for (OpId id = 0; id < program.ops.size(); ++id) {
    const Op& op = program.ops[id];
    if (const auto* alloc = std::get_if<Alloc>(&op.action)) {
      if (states[alloc->buffer] != State::unborn)
        faults.add("{} is allocated twice, at {}", op.role, name_op(program, id));
      states[alloc->buffer] = State::alive;
    } else if (const auto* free = std::get_if<Free>(&op.action)) {
      if (states[free->buffer] != State::alive)
        faults.add("{} is freed while not alive, at {}", op.role, name_op(program, id));
      states[free->buffer] = State::dead;
    } else {
      for (std::size_t i = 0; i < std::size_t{op.read_count} + op.write_count; ++i) {
        const BufferId buffer = program.refs[op.first_ref + i];
        if (states[buffer] != State::alive) {
          faults.add("{} uses {}, which is not alive", name_op(program, id), program.buffers[buffer].name);
        }
      }
    }
  }
}

void check_edges(const RankProgram& program, Faults& faults) {
  for (OpId id = 0; id < program.ops.size(); ++id) {
    for (const OpId from : program.waits(program.ops[id])) {
      if (from >= id)
        faults.add("{} waits for {}, which is issued later", name_op(program, id), name_op(program, from));
    }
  }
}

/// A write and any other access of one buffer are ordered, whatever their lanes.
void check_hazards(const RankProgram& program, Faults& faults) {
  constexpr OpId none = ~OpId{0};
  struct Uses {
    OpId write = none;
    std::array<OpId, lane_count> read;
    Uses() { read.fill(~OpId{0}); }
  };
  const HappensBefore happens(program);
  std::vector<Uses> uses(program.buffers.size());
  for (OpId id = 0; id < program.ops.size(); ++id) {
    const Op& op = program.ops[id];
    const auto check = [&](OpId earlier, BufferId buffer) {
      if (earlier == none || earlier == id || happens.ordered(earlier, id)) return;
      faults.add("{} and {} both use {} and are not ordered", name_op(program, earlier), name_op(program, id),
                 program.buffers[buffer].name);
    };
    for (const BufferId buffer : program.reads(op)) {
      check(uses[buffer].write, buffer);
      uses[buffer].read[static_cast<std::size_t>(op.lane)] = id;
    }
    for (const BufferId buffer : program.writes(op)) {
      Uses& use = uses[buffer];
      check(use.write, buffer);
      for (const OpId reader : use.read) check(reader, buffer);
      use.write = id;
      use.read.fill(none);
    }
  }
}

struct Issued {
  CollectiveKind kind;
  DType dtype;
  GroupId group;
  OpId op;
  bool operator==(const Issued& other) const {
    return kind == other.kind && dtype == other.dtype && group == other.group;
  }
};

std::map<GroupId, std::vector<Issued>> collectives_of(const RankProgram& program) {
  std::map<GroupId, std::vector<Issued>> result;
  for (OpId id = program.steady_first; id < program.steady_end; ++id) {
    if (const auto* c = std::get_if<Collective>(&program.ops[id].action))
      result[c->group].push_back({c->kind, c->dtype, c->group, id});
  }
  return result;
}

void check_collectives(const StepProgram& program, Faults& faults) {
  if (program.classes.empty()) return;
  const auto first = collectives_of(program.classes.front().program);
  for (std::size_t c = 1; c < program.classes.size(); ++c) {
    const auto other = collectives_of(program.classes[c].program);
    for (const auto& [group, issued] : first) {
      const auto found = other.find(group);
      const std::size_t count = found == other.end() ? 0 : found->second.size();
      if (count != issued.size()) {
        faults.add("rank class 0 issues {} collectives on group {}, class {} issues {}", issued.size(),
                   program.groups[group].name, c, count);
        continue;
      }
      for (std::size_t i = 0; i < count; ++i) {
        if (issued[i] == found->second[i]) continue;
        faults.add("collective {} on group {}: class 0 issues {} at {}, class {} issues {} at {}", i,
                   program.groups[group].name, name_of(issued[i].kind),
                   name_op(program.classes[0].program, issued[i].op), c, name_of(found->second[i].kind),
                   name_op(program.classes[c].program, found->second[i].op));
        break;
      }
    }
  }
}

/// Who waits for whom across classes: a collective joins the ops of all classes into one node, so two collectives that two
/// classes issue in opposite order on one lane close a cycle.
void check_cycles(const StepProgram& program, Faults& faults) {
  if (program.classes.size() < 2) return;  // edges point backwards: one class alone has no cycle
  using Graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS>;
  std::vector<std::vector<std::size_t>> vertex(program.classes.size());
  std::map<std::pair<GroupId, std::size_t>, std::size_t> shared;
  std::vector<std::pair<std::size_t, OpId>> owner;
  Graph graph;
  for (std::size_t c = 0; c < program.classes.size(); ++c) {
    const RankProgram& rank = program.classes[c].program;
    vertex[c].assign(rank.ops.size(), 0);
    std::map<GroupId, std::size_t> sequence;
    std::array<std::size_t, lane_count> last{};
    std::array<bool, lane_count> any{};
    for (OpId id = rank.steady_first; id < rank.steady_end; ++id) {
      const Op& op = rank.ops[id];
      if (!takes_time(op)) continue;
      const auto* collective = std::get_if<Collective>(&op.action);
      std::size_t node = owner.size();
      if (collective) {
        const auto [found, added] = shared.try_emplace({collective->group, sequence[collective->group]++}, node);
        node = found->second;
        if (added) owner.emplace_back(c, id);
      } else {
        owner.emplace_back(c, id);
      }
      vertex[c][id] = node;
      const auto lane = static_cast<std::size_t>(op.lane);
      if (any[lane]) boost::add_edge(last[lane], node, graph);
      last[lane] = node;
      any[lane] = true;
      for (const OpId from : rank.waits(op)) {
        if (from >= rank.steady_first) boost::add_edge(vertex[c][from], node, graph);
      }
    }
  }
  std::vector<std::size_t> component(boost::num_vertices(graph));
  const std::size_t count = boost::strong_components(graph, component.data());
  std::vector<std::vector<std::size_t>> members(count);
  for (std::size_t v = 0; v < component.size(); ++v) members[component[v]].push_back(v);
  for (const auto& cycle : members) {
    if (cycle.size() < 2) continue;
    std::string text;
    for (const std::size_t v : cycle) {
      text += fmt::format("{}class {} {}", text.empty() ? "" : " -> ", owner[v].first,
                          name_op(program.classes[owner[v].first].program, owner[v].second));
    }
    faults.add("these wait for each other: {}", text);
  }
}

}  // namespace

HappensBefore::HappensBefore(const RankProgram& program) : program_(program), clocks_(program.ops.size()) {
  std::array<Clock, lane_count> now{};  // what the next op of each lane knows to have ended
  for (OpId id = 0; id < program.ops.size(); ++id) {
    const Op& op = program.ops[id];
    const auto lane = static_cast<std::size_t>(op.lane);
    Clock& clock = now[lane];
    for (const OpId from : program.waits(op)) {
      const Clock& other = clocks_[from];
      for (std::size_t i = 0; i < lane_count; ++i) clock[i] = std::max(clock[i], other[i]);
      OpId& ended = clock[static_cast<std::size_t>(program.ops[from].lane)];
      ended = std::max(ended, from + 1);
    }
    clocks_[id] = clock;
    if (takes_time(op)) clock[lane] = id + 1;
  }
}

std::vector<std::string> verify_step(const StepProgram& program) {
  Faults faults;
  for (const RankClass& ranks : program.classes) {
    check_lifetimes(ranks.program, faults);
    check_edges(ranks.program, faults);
    check_hazards(ranks.program, faults);
  }
  check_collectives(program, faults);
  check_cycles(program, faults);
  return faults.take();
}

}  // namespace plimsoll
