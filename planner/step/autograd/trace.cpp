// Recording of ops, buffers and the edges between lanes (planner/step/autograd/trace.hpp).
#include "planner/step/autograd/trace.hpp"

#include <algorithm>

namespace plimsoll {

Tensor Trace::allocate(BufferDecl buffer, const Shape& shape) {
  const auto id = static_cast<BufferId>(program_.buffers.size());
  buffer.shape = shape;
  buffer.layer = layer;
  buffer.size = Elements(shape.numel()) * buffer.dtype;
  const DType dtype = buffer.dtype;
  program_.buffers.push_back(buffer);
  last_use_.emplace_back();
  Op op;
  op.action = Alloc{id};
  op.lane = buffer.pool;
  op.issuer = issuer;
  op.layer = layer;
  op.micro_batch = micro_batch;
  op.role = buffer.name;
  program_.ops.push_back(op);
  if (free_storages_.empty()) free_storages_.push_back(&storages_.emplace_back());
  Storage* storage = free_storages_.back();
  free_storages_.pop_back();
  *storage = Storage{this, id, 0};
  return Tensor{StorageRef(storage), shape, 0, dtype, false, false};
}

Tensor Trace::empty(const Shape& shape, DType dtype, const char* name, Category what) {
  BufferDecl buffer;
  buffer.name = name;
  buffer.dtype = dtype;
  buffer.category = what;
  buffer.pool = lane;
  return allocate(buffer, shape);
}

Tensor Trace::host_empty(const Shape& shape, DType dtype, const char* name, Category what, bool pinned) {
  BufferDecl buffer;
  buffer.name = name;
  buffer.dtype = dtype;
  buffer.category = what;
  buffer.pool = Lane::host;
  buffer.pinned = pinned;
  return allocate(buffer, shape);
}

void Trace::free(Storage* storage) {
  if (stopped_) return;
  const BufferId id = storage->buffer;
  Op op;
  op.action = Free{id};
  op.lane = program_.buffers[id].pool;
  op.issuer = issuer;
  op.layer = layer;
  op.micro_batch = micro_batch;
  op.role = program_.buffers[id].name;
  program_.ops.push_back(op);
  free_storages_.push_back(storage);
}

KernelId Trace::add_kernel(const Kernel& kernel) {
  program_.kernels.push_back(kernel);
  program_.kernels.back().compiled = compiled;
  return static_cast<KernelId>(program_.kernels.size() - 1);
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
    index = static_cast<std::uint32_t>(program_.calls.size());
    program_.calls.push_back(call);
  }
  record(Compute{add_kernel(kernel), index}, lane, reads, writes, role);
}

void Trace::compute(const Kernel& kernel, const std::vector<const Tensor*>& reads,
                    const std::vector<const Tensor*>& writes, const char* role) {
  append(Compute{add_kernel(kernel)}, lane, reads, writes, role);
}

void Trace::collective(const Collective& what, std::initializer_list<const Tensor*> reads,
                       std::initializer_list<const Tensor*> writes, const char* role) {
  Collective action = what;
  if (action.receive_size.count == 0) action.receive_size = action.full_size;
  record(action, lane, reads, writes, role);
}

OpId Trace::record(const Action& action, Lane on, std::initializer_list<const Tensor*> reads,
                   std::initializer_list<const Tensor*> writes, const char* role) {
  return append(action, on, Tensors(reads.begin(), reads.size()), Tensors(writes.begin(), writes.size()), role);
}

OpId Trace::append(const Action& action, Lane on, Tensors reads, Tensors writes, const char* role) {
  const OpId id = next_op();
  Op op;
  op.action = action;
  op.lane = on;
  op.issuer = issuer;
  op.layer = layer;
  op.micro_batch = micro_batch;
  op.role = role;
  op.first_ref = static_cast<std::uint32_t>(program_.refs.size());
  for (const Tensor* tensor : reads) {
    if (!tensor || !*tensor) continue;
    program_.refs.push_back(tensor->buffer());
    program_.offsets.push_back(tensor->offset);
    ++op.read_count;
  }
  for (const Tensor* tensor : writes) {
    if (!tensor || !*tensor) continue;
    program_.refs.push_back(tensor->buffer());
    program_.offsets.push_back(tensor->offset);
    ++op.write_count;
  }
  op.first_after = static_cast<std::uint32_t>(program_.after.size());
  add_edges(op, id);
  program_.ops.push_back(op);
  last_on_lane_[static_cast<std::size_t>(on)] = id;
  return id;
}

// An op waits for the last writer of what it reads, and for the last writer and reader of what it writes, where those ran
// on other lanes; a wait already implied by an earlier op of its own lane is not repeated.
void Trace::add_edges(Op& op, OpId id) {
  for (const OpId from : pending_[static_cast<std::size_t>(op.lane)]) add_edge(op, from);
  pending_[static_cast<std::size_t>(op.lane)].clear();
  const auto refs = std::span<const std::uint32_t>(program_.refs).subspan(op.first_ref);
  for (std::size_t i = 0; i < refs.size(); ++i) {
    LastUse& use = last_use_[refs[i]];
    if (use.write != none && use.write != id) add_edge(op, use.write);
    if (i < op.read_count) {
      use.read = id;
    } else {
      if (use.read != none && use.read != id) add_edge(op, use.read);
      use.write = id;
    }
  }
}

void Trace::add_edge(Op& op, OpId from) {
  const Lane other = program_.ops[from].lane;
  if (other == op.lane) return;
  OpId& waited = waited_[static_cast<std::size_t>(op.lane)][static_cast<std::size_t>(other)];
  if (waited > from) return;  // stored as id + 1, so that 0 means none
  waited = from + 1;
  program_.after.push_back(from);
  ++op.after_count;
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
