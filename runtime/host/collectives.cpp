// Collectives over a transport (runtime/host/collectives.hpp).
#include "runtime/host/collectives.hpp"

#include <cstring>
#include <numeric>

#include "planner/base/check.hpp"
#include "runtime/core/number.hpp"
#include "runtime/core/row_bound.hpp"

namespace plimsoll {

namespace {

using Parts = std::vector<std::span<std::byte>>;
using ConstParts = std::vector<std::span<const std::byte>>;

struct Exchange {
  const Members& members;
  Transport& transport;
  std::int64_t& sent;

  void run(const ConstParts& send, const Parts& receive) const {
    for (std::size_t i = 0; i < send.size(); ++i) {
      if (i != members.self) sent += static_cast<std::int64_t>(send[i].size());
    }
    if (members.size() > 1) transport.exchange(members, send, receive);
  }
};

/// Parts [bounds[i], bounds[i + 1]) of a buffer, in bytes.
Parts cut(std::byte* data, const std::vector<std::int64_t>& bounds) {
  Parts parts;
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i)
    parts.emplace_back(data + bounds[i], static_cast<std::size_t>(bounds[i + 1] - bounds[i]));
  return parts;
}

/// Element-wise bounds of n nearly equal parts, in bytes.
std::vector<std::int64_t> even_bounds(std::int64_t bytes, std::size_t n, DType dtype) {
  const std::int64_t elements = bytes / size_of(dtype), members = static_cast<std::int64_t>(n);
  std::vector<std::int64_t> bounds{0};
  for (std::int64_t i = 0; i < members; ++i)
    bounds.push_back(bounds.back() + (elements / members + (i < elements % members ? 1 : 0)) * size_of(dtype));
  return bounds;
}

void all_gather(const Exchange& e, std::span<const std::byte> own, const Parts& full) {
  if (own.data() != full[e.members.self].data()) std::memcpy(full[e.members.self].data(), own.data(), own.size());
  e.run(ConstParts(full.size(), own), full);
}

/// The sum over members of this rank's part, into `result`.
void reduce_part(const Exchange& e, DType dtype, const Parts& full, std::byte* result) {
  const std::span<std::byte> own = full[e.members.self];
  std::vector<std::vector<std::byte>> others(full.size(), std::vector<std::byte>(own.size()));
  Parts receive;
  for (auto& other : others) receive.emplace_back(other);
  e.run(ConstParts(full.begin(), full.end()), receive);
  const auto numel = static_cast<std::int64_t>(own.size()) / size_of(dtype);
  std::vector<double> sum(static_cast<std::size_t>(numel));
  for (std::size_t member = 0; member < full.size(); ++member) {
    const std::byte* part = member == e.members.self ? own.data() : others[member].data();
    for (std::int64_t i = 0; i < numel; ++i) sum[static_cast<std::size_t>(i)] += number_at(part, dtype, i);
  }
  for (std::int64_t i = 0; i < numel; ++i) set_number(result, dtype, i, sum[static_cast<std::size_t>(i)]);
}

/// Of two members: the other's part comes over as it is.
void bring_part(const Exchange& e, const Parts& full, std::span<std::byte> result) {
  CHECK(full.size() == 2, "a reduce-scatter by copies has two members");
  Parts receive(2);
  receive[1 - e.members.self] = result;
  e.run(ConstParts(full.begin(), full.end()), receive);
}

void all_reduce(const Exchange& e, DType dtype, const Parts& full) {
  reduce_part(e, dtype, full, full[e.members.self].data());
  e.run(ConstParts(full.size(), full[e.members.self]), full);
}

/// Byte bounds of the parts of a buffer of rows, from [members, local experts] counts.
std::vector<std::int64_t> counted_bounds(const Operand& counts, std::int64_t entries, std::size_t members,
                                         std::int64_t row_bytes) {
  const auto* values = reinterpret_cast<const std::int32_t*>(counts.data);
  const std::int64_t each = entries / static_cast<std::int64_t>(members);
  std::vector<std::int64_t> bounds{0};
  for (std::size_t i = 0; i < members; ++i)
    bounds.push_back(bounds.back() + row_bytes * std::accumulate(values + static_cast<std::int64_t>(i) * each,
                                                                 values + static_cast<std::int64_t>(i + 1) * each,
                                                                 std::int64_t{0}));
  return bounds;
}

void all_to_all(const Exchange& e, const Operation& operation, const Collective& c) {
  const Operand &from = operation.reads[0], &to = operation.writes[0];
  const std::size_t n = e.members.size();
  std::vector<std::int64_t> leave = even_bounds(c.full_size.count, n, c.dtype);
  std::vector<std::int64_t> arrive = even_bounds(c.receive_size.count, n, c.dtype);
  if (operation.reads.size() == 3) {
    const RankProgram& program = operation.program;
    const Shape& shape = program.buffers[from.buffer].shape;
    const std::int64_t row = shape.numel() / shape.sizes[0] * size_of(from.dtype);
    // Counts of the rows sent stand in a buffer of [2, E], those of the rows that arrive in one of [members, El].
    const Shape& a = program.buffers[operation.reads[1].buffer].shape;
    const Shape& b = program.buffers[operation.reads[2].buffer].shape;
    const std::int64_t entries = std::min(a.numel(), b.numel());
    leave = counted_bounds(operation.reads[1], entries, n, row);
    arrive = counted_bounds(operation.reads[2], entries, n, row);
    check_row_bound(
        {arrive.back() / row, to.numel * size_of(to.dtype) / row, leave.back() / row, static_cast<std::int64_t>(n)},
        program.buffers[to.buffer].name);
  }
  const Parts send = cut(from.data, leave), receive = cut(to.data, arrive);
  std::memcpy(receive[e.members.self].data(), send[e.members.self].data(), send[e.members.self].size());
  e.run(ConstParts(send.begin(), send.end()), receive);
}

}  // namespace

void run_collective(const Operation& operation, const Collective& collective, const Members& members,
                    Transport& transport, std::int64_t& sent_bytes) {
  const Exchange e{members, transport, sent_bytes};
  const Operand &from = operation.reads[0], &to = operation.writes[0];
  const auto bounds = even_bounds(collective.full_size.count, members.size(), collective.dtype);
  const auto part_size = static_cast<std::size_t>(bounds[members.self + 1] - bounds[members.self]);
  switch (collective.kind) {
    case CollectiveKind::all_gather: {
      const std::byte* own = from.buffer == to.buffer ? to.data + bounds[members.self] : from.data;
      return all_gather(e, {own, part_size}, cut(to.data, bounds));
    }
    case CollectiveKind::reduce_scatter:
      if (collective.carrier == Carrier::copy_engines)
        return bring_part(e, cut(from.data, bounds), {to.data, part_size});
      return reduce_part(e, collective.dtype, cut(from.data, bounds), to.data);
    case CollectiveKind::all_reduce: return all_reduce(e, collective.dtype, cut(to.data, bounds));
    case CollectiveKind::all_to_all: return all_to_all(e, operation, collective);
    case CollectiveKind::broadcast: CHECK(false, "no engine that is executed broadcasts");
  }
}

}  // namespace plimsoll
