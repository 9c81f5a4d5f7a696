// The events and what carries over (planner/account/memory_events.hpp).
#include "planner/account/memory_events.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <string_view>
#include <tuple>

namespace plimsoll {

MemoryEvents::MemoryEvents(const RankProgram& program) {
  events_.reserve(2 * program.buffers.size() + 16);  // most buffers are freed once; a program empties the cache rarely
  for (OpId id = 0; id < program.ops.size(); ++id) {
    const Action& action = program.ops[id].action;
    if (const auto* alloc = std::get_if<Alloc>(&action)) {
      events_.push_back({id, alloc->buffer, MemoryEvent::Kind::alloc});
    } else if (const auto* free = std::get_if<Free>(&action)) {
      events_.push_back({id, free->buffer, MemoryEvent::Kind::free});
    } else if (std::holds_alternative<EmptyCache>(action)) {
      events_.push_back({id, 0, MemoryEvent::Kind::empty_cache});
    }
  }
}

std::span<const MemoryEvent> MemoryEvents::of(OpId first, OpId end) const {
  const auto before = [](const MemoryEvent& event, OpId op) { return event.op < op; };
  const auto begin = std::lower_bound(events_.begin(), events_.end(), first, before);
  return {begin, std::lower_bound(begin, events_.end(), end, before)};
}

std::vector<Carried> carried_over(const RankProgram& program, std::span<const MemoryEvent> events) {
  using Key = std::tuple<std::int64_t, std::string_view, Lane, int>;
  std::map<Key, std::deque<BufferId>> left;
  std::vector<BufferId> lost;
  std::vector<bool> made(program.buffers.size());
  for (const MemoryEvent& event : events) {
    if (event.kind == MemoryEvent::Kind::alloc) {
      made[event.buffer] = true;
    } else if (event.kind == MemoryEvent::Kind::free) {
      if (!made[event.buffer]) lost.push_back(event.buffer);
      made[event.buffer] = false;
    }
  }
  const auto key = [&](BufferId id) {
    const BufferDecl& b = program.buffers[id];
    return Key{b.size.count, b.name, b.pool, b.layer};
  };
  for (const MemoryEvent& event : events) {
    if (event.kind == MemoryEvent::Kind::alloc && made[event.buffer]) left[key(event.buffer)].push_back(event.buffer);
  }
  std::vector<Carried> result;
  for (const BufferId freed : lost) {
    auto found = left.find(key(freed));
    if (found == left.end() || found->second.empty()) continue;
    result.push_back({freed, found->second.front()});
    found->second.pop_front();
  }
  return result;
}

}  // namespace plimsoll
