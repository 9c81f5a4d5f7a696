// Aligning the program's allocations with those of a trace (planner/cli/trace_comparison.hpp).
#include "planner/cli/trace_comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "planner/account/ledger.hpp"
#include "planner/base/format.hpp"
#include "planner/cli/align.hpp"

namespace plimsoll {
namespace {

constexpr std::size_t never = ~std::size_t{0};

Bytes block_of(const AllocatorEvent& event) { return Bytes(std::max<std::int64_t>(512, round_up(event.bytes, 512))); }

/// One side: its allocations of at least the threshold, and until when they live.
struct Side {
  std::vector<std::size_t> events;   ///< of each allocation
  std::vector<std::int64_t> sizes;   ///< of each allocation
  std::vector<std::size_t> freed;    ///< event of its free; never
  std::vector<std::size_t> partner;  ///< allocation of the other side; never
  PeakOfRecord peak;
  Bytes bytes;
};

Side side_of(const AllocatorRecord& record, Bytes threshold) {
  Side side;
  std::unordered_map<std::int64_t, std::size_t> by_id;
  Bytes live = record.live_before;
  for (std::size_t i = 0; i < record.events.size(); ++i) {
    const AllocatorEvent& event = record.events[i];
    if (event.is_alloc) {
      live += block_of(event);
      if (live > side.peak.bytes) side.peak = {live, i, record.label_of(event), {}};
    } else {
      live -= block_of(event);
    }
    if (event.bytes < threshold.count) continue;
    if (event.is_alloc) {
      by_id[event.id] = side.events.size();
      side.events.push_back(i);
      side.sizes.push_back(event.bytes);
      side.freed.push_back(never);
      side.bytes += Bytes(event.bytes);
    } else if (const auto found = by_id.find(event.id); found != by_id.end()) {
      side.freed[found->second] = i;
    }
  }
  side.partner.assign(side.events.size(), never);
  return side;
}

/// "R I x 2 B" of "R I x 2 B = 19336 x 3584 x 2 B".
std::string letters_of(const std::string& formula) { return formula.substr(0, formula.find(" = ")); }

/// Equal tensors in one group, largest sum first.
class Groups {
 public:
  void add(const TensorGroup& one, int layer) {
    const auto [found, is_new] = index_.emplace(one.name + '\n' + letters_of(one.formula), groups_.size());
    if (is_new) {
      groups_.push_back(one);
      TensorGroup& group = groups_.back();
      group.least = one.bytes;
      group.first_layer = group.last_layer = layer;
      group.shift_high = one.shift_low;
    }
    TensorGroup& group = groups_[found->second];
    ++group.count;
    group.total += one.bytes;
    group.bytes = std::max(group.bytes, one.bytes);
    group.least = std::min(group.least, one.bytes);
    if (group.least != group.bytes) group.formula = letters_of(group.formula);
    group.first_layer = std::min(group.first_layer, layer);
    group.last_layer = std::max(group.last_layer, layer);
    group.shift_low = std::min(group.shift_low, one.shift_low);
    group.shift_high = std::max(group.shift_high, one.shift_low);
  }
  std::vector<TensorGroup> sorted() && {
    std::stable_sort(groups_.begin(), groups_.end(),
                     [](const TensorGroup& a, const TensorGroup& b) { return a.total > b.total; });
    return std::move(groups_);
  }

 private:
  std::map<std::string, std::size_t> index_;
  std::vector<TensorGroup> groups_;
};

class Comparer {
 public:
  Comparer(const RankProgram& program, const ProgramRecord& mine, const AllocatorRecord& trace, Bytes threshold)
      : program_(program),
        mine_(mine),
        trace_(trace),
        mine_side_(side_of(mine.record, threshold)),
        trace_side_(side_of(trace, threshold)) {
    result_.threshold = threshold;
  }

  TraceComparison run() {
    pairs_ = align(mine_side_.sizes, trace_side_.sizes);
    for (const auto& [i, j] : pairs_) {
      mine_side_.partner[i] = j;
      trace_side_.partner[j] = i;
      result_.matched_bytes += Bytes(mine_side_.sizes[i]);
    }
    count();
    find_unmatched();
    find_lifetimes();
    find_peaks();
    return std::move(result_);
  }

 private:
  void count() {
    result_.program_count = static_cast<int>(mine_side_.events.size());
    result_.trace_count = static_cast<int>(trace_side_.events.size());
    result_.matched = static_cast<int>(pairs_.size());
    result_.program_bytes = mine_side_.bytes;
    result_.trace_bytes = trace_side_.bytes;
    result_.program_live = mine_.record.live_before;
    result_.trace_live = trace_.live_before;
  }

  const std::string& phase_at(std::size_t event) const { return mine_.phases[mine_.phase[event]]; }
  const BufferDecl& buffer_at(std::size_t event) const { return program_.buffers[mine_.buffers[event]]; }

  TensorGroup of_program(std::size_t allocation) const {
    const std::size_t event = mine_side_.events[allocation];
    const BufferDecl& buffer = buffer_at(event);
    TensorGroup group;
    group.name = without_layer(buffer.name);
    group.formula = formula_of(buffer);
    group.bytes = buffer.size;
    group.phase = phase_at(event);
    return group;
  }
  int layer_of(std::size_t allocation) const { return buffer_at(mine_side_.events[allocation]).layer; }

  /// The program's allocation that is aligned with the last one of the trace before this.
  std::size_t neighbour(std::size_t allocation) const {
    while (allocation > 0) {
      if (trace_side_.partner[--allocation] != never) return trace_side_.partner[allocation];
    }
    return never;
  }

  TensorGroup of_trace(std::size_t allocation) const {
    const AllocatorEvent& event = trace_.events[trace_side_.events[allocation]];
    TensorGroup group;
    group.name = trace_.label_of(event);
    group.bytes = Bytes(event.bytes);
    const std::size_t before = neighbour(allocation);
    if (before == never) {
      group.formula = "the step's first";
      return group;
    }
    group.formula = fmt::format("after {}", without_layer(buffer_at(mine_side_.events[before]).name));
    group.phase = phase_at(mine_side_.events[before]);
    return group;
  }
  int layer_near(std::size_t allocation) const {
    const std::size_t before = neighbour(allocation);
    return before == never ? -1 : layer_of(before);
  }

  void find_unmatched() {
    Groups mine, trace;
    for (std::size_t i = 0; i < mine_side_.events.size(); ++i) {
      if (mine_side_.partner[i] == never) mine.add(of_program(i), layer_of(i));
    }
    for (std::size_t j = 0; j < trace_side_.events.size(); ++j) {
      if (trace_side_.partner[j] == never) trace.add(of_trace(j), layer_near(j));
    }
    result_.only_in_program = std::move(mine).sorted();
    result_.only_in_trace = std::move(trace).sorted();
  }

  /// How many aligned allocations come before an event; frees at the end of the record count as never.
  std::vector<int> ranks(const Side& side) const {
    std::vector<int> result(side.events.size());
    std::vector<std::size_t> aligned;
    for (std::size_t i = 0; i < side.events.size(); ++i) {
      if (side.partner[i] != never) aligned.push_back(side.events[i]);
    }
    for (std::size_t i = 0; i < side.events.size(); ++i) {
      result[i] = static_cast<int>(std::lower_bound(aligned.begin(), aligned.end(), side.freed[i]) - aligned.begin());
    }
    return result;
  }

  void find_lifetimes() {
    const std::vector<int> mine = ranks(mine_side_);
    const std::vector<int> trace = ranks(trace_side_);
    Groups groups;
    for (const auto& [i, j] : pairs_) {
      if (mine[i] == trace[j]) continue;
      TensorGroup group = of_program(i);
      group.shift_low = trace[j] - mine[i];
      groups.add(group, layer_of(i));
    }
    result_.lifetimes = std::move(groups).sorted();
  }

  static bool alive(const Side& side, std::size_t allocation) {
    return side.events[allocation] <= side.peak.event &&
           (side.freed[allocation] == never || side.freed[allocation] > side.peak.event);
  }

  void find_peaks() {
    result_.program_peak = mine_side_.peak;
    result_.trace_peak = trace_side_.peak;
    if (mine_side_.peak.bytes.count > 0) result_.program_peak.phase = phase_at(mine_side_.peak.event);
    const auto after = std::upper_bound(trace_side_.events.begin(), trace_side_.events.end(), trace_side_.peak.event);
    const std::size_t before = neighbour(static_cast<std::size_t>(after - trace_side_.events.begin()));
    if (before != never) result_.trace_peak.phase = phase_at(mine_side_.events[before]);
    Groups mine, trace;
    for (std::size_t i = 0; i < mine_side_.events.size(); ++i) {
      const std::size_t j = mine_side_.partner[i];
      if (alive(mine_side_, i) && (j == never || !alive(trace_side_, j))) mine.add(of_program(i), layer_of(i));
    }
    for (std::size_t j = 0; j < trace_side_.events.size(); ++j) {
      const std::size_t i = trace_side_.partner[j];
      if (!alive(trace_side_, j) || (i != never && alive(mine_side_, i))) continue;
      TensorGroup group = of_trace(j);
      if (i != never) group.formula = fmt::format("is {}", of_program(i).name);
      trace.add(group, i != never ? layer_of(i) : layer_near(j));
    }
    result_.only_at_program_peak = std::move(mine).sorted();
    result_.only_at_trace_peak = std::move(trace).sorted();
  }

  const RankProgram& program_;
  const ProgramRecord& mine_;
  const AllocatorRecord& trace_;
  Side mine_side_, trace_side_;
  std::vector<std::pair<std::size_t, std::size_t>> pairs_;
  TraceComparison result_;
};

/// Events of at least the threshold, frees with a negative size.
std::vector<std::size_t> events_from(const AllocatorRecord& record, Bytes threshold, std::vector<std::int64_t>& keys) {
  std::vector<std::size_t> events;
  for (std::size_t i = 0; i < record.events.size(); ++i) {
    if (record.events[i].bytes < threshold.count) continue;
    events.push_back(i);
    keys.push_back(record.events[i].is_alloc ? record.events[i].bytes : -record.events[i].bytes);
  }
  return events;
}

}  // namespace

std::string without_layer(std::string name) {
  constexpr std::string_view layers = ".layers.";
  const std::size_t at = name.find(layers);
  if (at == std::string::npos) return name;
  const std::size_t first = at + layers.size();
  const std::size_t end = name.find('.', first);
  return end == std::string::npos ? name : name.replace(first, end - first, "*");
}

double TraceComparison::shared() const {
  const Bytes more = std::max(program_bytes, trace_bytes);
  return more.count > 0 ? matched_bytes / more : 0;
}

TraceComparison compare(const RankProgram& program, const ProgramRecord& mine, const AllocatorRecord& trace,
                        Bytes threshold) {
  return Comparer(program, mine, trace, threshold).run();
}

std::string list_differences(const ProgramRecord& mine, const AllocatorRecord& trace, Bytes threshold) {
  std::vector<std::int64_t> mine_keys, trace_keys;
  const std::vector<std::size_t> mine_events = events_from(mine.record, threshold, mine_keys);
  const std::vector<std::size_t> trace_events = events_from(trace, threshold, trace_keys);
  std::string out;
  const auto line = [&](char sign, const AllocatorRecord& record, std::size_t event) {
    const AllocatorEvent& it = record.events[event];
    out += fmt::format("{} {} {:>16}  {}\n", sign, it.is_alloc ? "alloc" : "free ", format_count(it.bytes),
                       record.label_of(it));
  };
  std::size_t i = 0, j = 0;
  auto pairs = align(mine_keys, trace_keys);
  pairs.emplace_back(mine_keys.size(), trace_keys.size());
  for (const auto& [to_i, to_j] : pairs) {
    if (i < to_i || j < to_j) {
      const std::string& phase = i < mine_events.size() ? mine.phases[mine.phase[mine_events[i]]] : std::string("end");
      out += fmt::format("@ {}, event {} of the program, {} of the trace\n", phase, i, j);
      if (i > 0) line(' ', mine.record, mine_events[i - 1]);
    }
    for (; i < to_i; ++i) line('-', mine.record, mine_events[i]);
    for (; j < to_j; ++j) line('+', trace, trace_events[j]);
    i = to_i + 1;
    j = to_j + 1;
  }
  return out;
}

}  // namespace plimsoll
