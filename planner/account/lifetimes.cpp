// One walk in the order of issue, then the lanes' knowledge of each last use (planner/account/lifetimes.hpp).
#include "planner/account/lifetimes.hpp"

#include <algorithm>

#include "planner/step/verify_step.hpp"

namespace plimsoll {

namespace {

constexpr OpId none = ~OpId{0};

/// The ops that touch each buffer.
struct Uses {
  std::vector<OpId> first;  ///< by buffer; of one that nothing uses its Alloc
  std::vector<Clock> last;  ///< by buffer: op id + 1 of the last one on each lane
};

Uses uses_of(const RankProgram& program) {
  Uses uses{std::vector<OpId>(program.buffers.size(), none), std::vector<Clock>(program.buffers.size())};
  for (OpId id = 0; id < program.ops.size(); ++id) {
    const Op& op = program.ops[id];
    for (std::size_t i = 0; i < std::size_t{op.read_count} + op.write_count; ++i) {
      const BufferId buffer = program.refs[op.first_ref + i];
      uses.first[buffer] = std::min(uses.first[buffer], id);
      uses.last[buffer][static_cast<std::size_t>(op.lane)] = id + 1;
    }
  }
  for (OpId id = 0; id < program.ops.size(); ++id) {
    const auto* alloc = std::get_if<Alloc>(&program.ops[id].action);
    if (alloc && uses.first[alloc->buffer] == none) uses.first[alloc->buffer] = id;
  }
  return uses;
}

/// The ops before which all lanes meet, ascending.
std::vector<OpId> joins_of(const RankProgram& program) {
  std::vector<OpId> joins{program.steady_first, program.steady_end};
  for (const Repeat& repeat : program.repeats) joins.push_back(repeat.end);
  std::sort(joins.begin(), joins.end());
  return joins;
}

/// The buffers first used on one lane, in the order of their Alloc.
struct Row {
  std::uint32_t place = 0;   ///< of its first buffer
  std::uint32_t issued = 0;  ///< allocated so far in the walk
  std::vector<Clock> known;  ///< by buffer: what its first use knows to have ended; less if a later buffer's knows less
};

bool covers(const Clock& known, const Clock& last) {
  for (std::size_t lane = 0; lane < lane_count; ++lane)
    if (last[lane] > known[lane]) return false;
  return true;
}

class Lives {
 public:
  Lives(const RankProgram& program, std::int64_t alignment)
      : program_(program), alignment_(alignment), uses_(uses_of(program)), lifetime_(program.buffers.size()) {
    lay_rows();
  }

  std::vector<Lifetime> run() {
    for (OpId id = 0; id < program_.ops.size(); ++id) {
      const Action& action = program_.ops[id].action;
      if (const auto* alloc = std::get_if<Alloc>(&action)) begin(alloc->buffer, id);
      if (const auto* free = std::get_if<Free>(&action)) end(free->buffer, id);
    }
    return std::move(lifetimes_);
  }

 private:
  bool on_host(BufferId buffer) const { return program_.buffers[buffer].pool == Lane::host; }
  Row& row_of(BufferId buffer) { return rows_[static_cast<std::size_t>(program_.ops[uses_.first[buffer]].lane)]; }

  void lay_rows() {
    const HappensBefore happens(program_);
    const std::vector<OpId> joins = joins_of(program_);
    for (const Op& op : program_.ops) {
      const auto* alloc = std::get_if<Alloc>(&op.action);
      if (!alloc || on_host(alloc->buffer)) continue;
      const OpId first = uses_.first[alloc->buffer];
      Clock known = happens.before(first);
      const auto join = std::upper_bound(joins.begin(), joins.end(), first);
      if (join != joins.begin())
        for (OpId& ended : known) ended = std::max(ended, *std::prev(join));
      row_of(alloc->buffer).known.push_back(known);
    }
    std::uint32_t place = 0;
    for (Row& row : rows_) {
      row.place = place;
      place += static_cast<std::uint32_t>(row.known.size());
      for (std::size_t i = row.known.size(); i-- > 1;)
        for (std::size_t lane = 0; lane < lane_count; ++lane)
          row.known[i - 1][lane] = std::min(row.known[i - 1][lane], row.known[i][lane]);
    }
    lifetimes_.reserve(place);
  }

  void begin(BufferId buffer, OpId id) {
    if (on_host(buffer)) return;
    Row& row = row_of(buffer);
    Lifetime life;
    life.buffer = buffer;
    life.size = std::max(alignment_, round_up(program_.buffers[buffer].size.count, alignment_));
    life.alloc = id;
    life.free = static_cast<OpId>(program_.ops.size());
    life.place = row.place + row.issued++;
    for (std::size_t lane = 0; lane < lane_count; ++lane) {
      const Row& other = rows_[lane];
      life.meets[lane] = {other.place + other.issued, other.place + static_cast<std::uint32_t>(other.known.size())};
    }
    lifetime_[buffer] = static_cast<std::uint32_t>(lifetimes_.size());
    lifetimes_.push_back(life);
  }

  void end(BufferId buffer, OpId id) {
    if (on_host(buffer)) return;
    Lifetime& life = lifetimes_[lifetime_[buffer]];
    life.free = id;
    for (std::size_t lane = 0; lane < lane_count; ++lane) {
      const Row& other = rows_[lane];
      const auto unaware = [&](const Clock& known) { return !covers(known, uses_.last[buffer]); };
      auto next = other.known.begin() + other.issued;
      // Most lanes know at once.
      if (next != other.known.end() && unaware(*next)) next = std::partition_point(next, other.known.end(), unaware);
      life.meets[lane].end = other.place + static_cast<std::uint32_t>(next - other.known.begin());
    }
  }

  const RankProgram& program_;
  const std::int64_t alignment_;
  const Uses uses_;
  std::array<Row, lane_count> rows_;
  std::vector<std::uint32_t> lifetime_;  ///< by buffer
  std::vector<Lifetime> lifetimes_;
};

}  // namespace

std::vector<Lifetime> lifetimes_of(const RankProgram& program, Bytes alignment) {
  return Lives(program, alignment.count).run();
}

}  // namespace plimsoll
