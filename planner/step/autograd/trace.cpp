// Recording of ops, buffers and the edges between lanes (planner/step/autograd/trace.hpp).
#include "planner/step/autograd/trace.hpp"

#include <algorithm>

namespace plimsoll {

void EntryIndex::grow() {
  std::vector<Slot> taken(slots_.size() * 2);
  taken.swap(slots_);
  for (const Slot& slot : taken) {
    if (slot.index != none) find(slot.hash, [](std::uint32_t) { return false; }) = slot;
  }
}

namespace {

/// Asks for the memory of what will be written to a table soon: a job is larger than the caches.
template <class Entry>
void prefetch_after(const Entry& newest) {
  constexpr std::size_t ahead = 768;  // bytes: some twelve entries
  __builtin_prefetch(reinterpret_cast<const char*>(&newest) + ahead, 1);
}

}  // namespace

void Trace::reserve(std::size_t ops) {
  program_.ops.reserve(ops);
  program_.buffers.reserve(ops / 3);
  program_.refs.reserve(ops * 5 / 4);
  program_.offsets.reserve(ops * 5 / 4);
}

inline Op& Trace::new_op(Lane on, const char* role) {
  Op& op = program_.ops.emplace_back();
  prefetch_after(op);
  op.lane = on;
  op.issuer = issuer;
  op.layer = layer;
  op.micro_batch = micro_batch;
  op.role = role;
  return op;
}

Tensor Trace::allocate(const Shape& shape, DType dtype, const char* name, Category what, Lane pool, bool pinned) {
  const auto id = static_cast<BufferId>(program_.buffers.size());
  BufferDecl& buffer = program_.buffers.emplace_back();
  prefetch_after(buffer);
  buffer.shape = shape;
  buffer.size = Elements(shape.numel()) * dtype;
  buffer.name = name;
  buffer.layer = layer;
  buffer.dtype = dtype;
  buffer.category = what;
  buffer.pool = pool;
  buffer.pinned = pinned;
  new_op(pool, name).action = Alloc{id};
  if (free_storages_.empty()) free_storages_.push_back(&storages_.emplace_back());
  Storage* storage = free_storages_.back();
  free_storages_.pop_back();
  *storage = Storage{this, id, 0, name, none, none, Lane::compute, Lane::compute, pool};
  return Tensor{StorageRef(storage), shape, 0, dtype, false, false};
}

Tensor Trace::empty(const Shape& shape, DType dtype, const char* name, Category what) {
  return allocate(shape, dtype, name, what, lane, false);
}

Tensor Trace::host_empty(const Shape& shape, DType dtype, const char* name, Category what, bool pinned) {
  return allocate(shape, dtype, name, what, Lane::host, pinned);
}

void Trace::free(Storage* storage) {
  if (stopped_) return;
  new_op(storage->pool, storage->name).action = Free{storage->buffer};
  free_storages_.push_back(storage);
}

KernelId Trace::add_kernel(const Kernel& kernel) {
  if (compiled && !kernel.compiled) {
    Kernel launched = kernel;
    launched.compiled = true;
    return add_kernel(launched);
  }
  const auto hash = static_cast<std::uint64_t>(kernel.bytes.count + kernel.elements * 3 + kernel.m * 5 + kernel.k * 7) +
                    (static_cast<std::uint64_t>(kernel.kind) << 40);
  return kernels_.find_or_add(program_.kernels, hash, kernel);
}

void Trace::compute(const Kernel& kernel, std::initializer_list<const Tensor*> reads,
                    std::initializer_list<const Tensor*> writes, const char* role) {
  record(Compute{add_kernel(kernel)}, lane, reads, writes, role);
}

void Trace::compute(const Kernel& kernel, const Call& call, std::initializer_list<const Tensor*> reads,
                    std::initializer_list<const Tensor*> writes, const char* role) {
  std::uint32_t index = 0;
  if (call.routine != Routine::none) {
    if (program_.calls.empty()) program_.calls.emplace_back();
    const auto hash = static_cast<std::uint64_t>(call.sizes[0] + call.sizes[1] * 3 + call.sizes[2] * 5) +
                      (static_cast<std::uint64_t>(call.routine) << 40);
    index = calls_.find_or_add(program_.calls, hash, call);
  }
  record(Compute{add_kernel(kernel), index}, lane, reads, writes, role);
}

void Trace::compute(const Kernel& kernel, const std::vector<const Tensor*>& reads,
                    const std::vector<const Tensor*>& writes, const char* role) {
  append(lane, reads, writes, role).action = Compute{add_kernel(kernel)};
}

void Trace::collective(const Collective& collective, std::initializer_list<const Tensor*> reads,
                       std::initializer_list<const Tensor*> writes, const char* role) {
  Collective action = collective;
  if (action.receive_size.count == 0) action.receive_size = action.full_size;
  record(action, lane, reads, writes, role);
}

void Trace::host_copy(const Tensor& from, const Tensor& to, Bytes size, const char* role, bool blocking) {
  const bool to_device = on_host(from);
  const bool pinned = program_.buffers[(to_device ? from : to).buffer()].pinned;
  record(HostCopy{to_device, pinned, size}, lane, {&from}, {&to}, role);
  if (blocking || !pinned) record(HostSync{lane}, Lane::host, {}, {}, role);
}

// A wait already implied by an earlier op of its own lane is not repeated.
inline void Trace::add_edge(Op& op, OpId from, Lane other) {
  if (other == op.lane) return;
  OpId& waited = waited_[static_cast<std::size_t>(op.lane)][static_cast<std::size_t>(other)];
  if (waited > from) return;  // stored as id + 1, so that 0 means none
  waited = from + 1;
  program_.after.push_back(from);
  ++op.after_count;
}

inline void Trace::add_pending(Op& op) {
  std::vector<OpId>& pending = pending_[static_cast<std::size_t>(op.lane)];
  for (const OpId from : pending) add_edge(op, from, program_.ops[from].lane);
  pending.clear();
}

// An op waits for the last writer of what it reads, and for the last writer and reader of what it writes, where those ran
// on other lanes.
template <class Use>
std::uint32_t Trace::add_operands(Tensors tensors, Use note) {
  std::uint32_t count = 0;
  for (const Tensor* tensor : tensors) {
    if (!tensor || !*tensor) continue;
    program_.refs.push_back(tensor->buffer());
    program_.offsets.push_back(tensor->offset);
    ++count;
    note(*tensor->storage.storage_);
  }
  return count;
}

Op& Trace::append(Lane on, Tensors reads, Tensors writes, const char* role) {
  const OpId id = next_op();
  Op& op = new_op(on, role);
  op.first_ref = static_cast<std::uint32_t>(program_.refs.size());
  op.first_after = static_cast<std::uint32_t>(program_.after.size());
  add_pending(op);
  op.read_count = add_operands(reads, [&](Storage& use) {
    if (use.write != none) add_edge(op, use.write, use.write_lane);
    use.read = id;
    use.read_lane = op.lane;
  });
  op.write_count = add_operands(writes, [&](Storage& use) {
    if (use.write != none && use.write != id) add_edge(op, use.write, use.write_lane);
    if (use.read != none && use.read != id) add_edge(op, use.read, use.read_lane);
    use.write = id;
    use.write_lane = op.lane;
  });
  last_on_lane_[static_cast<std::size_t>(on)] = id;
  return op;
}

void Trace::wait_for(Lane waiting, Lane on) {
  const OpId last = last_on_lane_[static_cast<std::size_t>(on)];
  if (last != none) pending_[static_cast<std::size_t>(waiting)].push_back(last);
}

void Trace::begin_phase(const char* name) {
  end_phases();
  program_.phases.push_back({name, next_op(), next_op()});
}

void Trace::end_phases() {
  if (!program_.phases.empty() && program_.phases.back().end == program_.phases.back().first) {
    program_.phases.back().end = next_op();
  }
}

void Trace::stop() {
  end_phases();
  stopped_ = true;
}

const char* Trace::intern(std::string text) { return program_.names.emplace_back(std::move(text)).c_str(); }

}  // namespace plimsoll
