// Streams, events, launches (runtime/cuda/cuda_backend.hpp).
#include "runtime/cuda/cuda_backend.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "runtime/core/row_bound.hpp"
#include "runtime/cuda/cuda_state.hpp"

namespace plimsoll {

namespace {

/// The kernels move 16 bytes at a time and keep a row in registers.
void refuse_sizes(const RankProgram& rank) {
  const auto refuse = [](const char* what, std::int64_t size, const std::string& legal) {
    throw MachineError(fmt::format("the CUDA backend has no kernel for {} of {}: {}", what, size, legal));
  };
  for (const Call& call : rank.calls) {
    const auto& s = call.sizes;
    switch (call.routine) {
      case Routine::norm:
        if (s[1] % 8 != 0 || s[1] > 8192) refuse("a hidden size", s[1], "multiples of 8 up to 8192");
        break;
      case Routine::route:
        if (s[1] > cuda::most_experts) refuse("a number of experts", s[1], fmt::format("up to {}", cuda::most_experts));
        if (s[2] > cuda::most_choices)
          refuse("a number of experts a token", s[2], fmt::format("up to {}", cuda::most_choices));
        break;
      case Routine::swiglu:
        if (s[1] % 8 != 0) refuse("an intermediate size", s[1], "multiples of 8");
        break;
      case Routine::rotary:
      case Routine::head_norm_rotary:
        if (s[3] < 16 || s[3] > 256 || !std::has_single_bit(static_cast<std::uint64_t>(s[3])))
          refuse("heads", s[3], "16, 32, 64, 128 and 256");
        break;
      default: break;
    }
  }
}

}  // namespace

CudaBackend::CudaBackend(const StepProgram& program, Transport& transport, double timeout_s) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) throw MachineError("there is no CUDA device");
  check(cudaSetDevice(transport.rank() % devices), "taking a device");
  for (const BufferDecl& buffer : program.classes.front().program.buffers) {
    if (buffer.category == Category::parameters && buffer.dtype != DType::bf16)
      throw MachineError("the CUDA backend computes in bf16; fp32 runs on the host backend");
  }
  impl_ = std::make_unique<Impl>(program, transport, timeout_s);
  refuse_sizes(impl_->rank);
  for (cudaStream_t& stream : impl_->streams)
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
  const RankProgram& rank = impl_->rank;
  std::int64_t count_bytes = 0;  // each op that copies counts takes a place at most once
  for (OpId id = 0; id < rank.steady_end; ++id) {
    const Op& op = rank.ops[id];
    if (std::holds_alternative<HostCopy>(op.action) && op.write_count == 0)
      count_bytes += rank.buffers[rank.refs[op.first_ref]].size.count;
    for (const OpId source : rank.waits(rank.ops[id])) {
      cudaEvent_t& event = impl_->events[source];
      if (!event) check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event");
    }
  }
  impl_->count_memory = cuda::pinned(static_cast<std::size_t>(count_bytes + 1));
  check(cudaEventCreateWithFlags(&impl_->join, cudaEventDisableTiming), "an event");
  std::vector<float> frequencies(rank.constants.begin(), rank.constants.end());
  const std::size_t bytes = frequencies.size() * sizeof(float);
  check(cudaMemcpy(impl_->constants.of(bytes + 4), frequencies.data(), bytes, cudaMemcpyHostToDevice), "constants");
}

void CudaBackend::abandon() {
  // Kernels of a communicator wait for their peers for ever; an aborted communicator's kernels end.  So do streams that wait for
  // flags.
  if (impl_->copies) impl_->copies->release(impl_->streams);
  for (auto& [key, communicator] : impl_->communicators) ncclCommAbort(communicator);
  impl_->communicators.clear();
}

CudaBackend::~CudaBackend() {
  cudaDeviceSynchronize();
  for (auto& [key, communicator] : impl_->communicators) ncclCommDestroy(communicator);
  for (auto& [op, event] : impl_->events) cudaEventDestroy(event);
  for (cudaEvent_t event : impl_->mark_events) cudaEventDestroy(event);
  for (auto& [op, pair] : impl_->staged) {
    for (Impl::Staged& one : pair) cudaEventDestroy(one.copied);
  }
  if (impl_->mark_start) cudaEventDestroy(impl_->mark_start);
  for (cudaStream_t stream : impl_->streams) cudaStreamDestroy(stream);
  cudaFree(impl_->arena);
}

std::byte* CudaBackend::allocate_arena(Bytes size) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, static_cast<std::size_t>(size.count)), "allocating the arena");
  impl_->arena = static_cast<std::byte*>(memory);
  if (impl_->transport.world() > 1) {
    impl_->copies = std::make_unique<cuda::PeerCopies>(impl_->transport, impl_->arena);
    impl_->tell_what_is_not_copied();
  }
  return impl_->arena;
}

std::shared_ptr<std::byte> CudaBackend::allocate_host(Bytes size) {
  return cuda::pinned(static_cast<std::size_t>(size.count));
}

void CudaBackend::set(const Hyperparameters& hyperparameters) { impl_->hyperparameters = hyperparameters; }

void CudaBackend::wait_for(Lane lane) { impl_->wait(impl_->stream(lane)); }

void CudaBackend::join_lanes() {
  const cudaStream_t compute = impl_->stream(Lane::compute);
  for (cudaStream_t stream : impl_->streams) {
    check(cudaEventRecord(impl_->join, stream), "joining lanes");
    check(cudaStreamWaitEvent(compute, impl_->join, 0), "joining lanes");
  }
  check(cudaEventRecord(impl_->join, compute), "joining lanes");
  for (cudaStream_t stream : impl_->streams) check(cudaStreamWaitEvent(stream, impl_->join, 0), "joining lanes");
}

void CudaBackend::write(const Operand& to, std::span<const std::byte> from) {
  check(cudaMemcpy(to.data, from.data(), from.size(), cudaMemcpyHostToDevice), "copying to the device");
  check(cudaStreamSynchronize(nullptr), "copying to the device");  // the lanes do not wait for the default stream
}
void CudaBackend::clear(const Operand& operand) {
  check(cudaMemset(operand.data, 0, static_cast<std::size_t>(operand.numel * size_of(operand.dtype))), "clearing");
  check(cudaStreamSynchronize(nullptr), "clearing");
}
void CudaBackend::read(const Operand& from, std::span<std::byte> to) {
  check(cudaDeviceSynchronize(), "waiting for the device");
  check(cudaMemcpy(to.data(), from.data, to.size(), cudaMemcpyDeviceToHost), "copying to the host");
}

void CudaBackend::record_times(bool on) {
  Impl& my = *impl_;
  my.recording = on;
  if (!on) return;
  if (!my.mark_start) check(cudaEventCreate(&my.mark_start), "an event");
  my.marks_used = 0;
  my.marked.clear();
  check(cudaDeviceSynchronize(), "waiting for what ran before");
  check(cudaEventRecord(my.mark_start, my.stream(Lane::compute)), "recording the start");
  check(cudaEventSynchronize(my.mark_start), "recording the start");
}

std::vector<MeasuredOp> CudaBackend::times() {
  check(cudaDeviceSynchronize(), "waiting for the step");
  std::vector<MeasuredOp> times;
  for (std::size_t i = 0; i + 1 < impl_->marks_used; i += 2) {
    float start = 0, end = 0;
    check(cudaEventElapsedTime(&start, impl_->mark_start, impl_->mark_events[i]), "reading a time");
    check(cudaEventElapsedTime(&end, impl_->mark_start, impl_->mark_events[i + 1]), "reading a time");
    times.push_back({impl_->marked[i], 0, 1e-3 * static_cast<double>(start), 1e-3 * static_cast<double>(end)});
  }
  return times;
}

void CudaBackend::copy_to_device(const Operation& operation, std::span<const std::byte> from) {
  const cudaStream_t on = impl_->stream(operation.op.lane);
  std::array<Impl::Staged, 2>& turns = impl_->staged[operation.id];
  std::swap(turns[0], turns[1]);
  Impl::Staged& staged = turns[0];
  for (Impl::Staged& one : turns) {
    if (one.memory) continue;
    one.memory = cuda::pinned(from.size());
    check(cudaEventCreateWithFlags(&one.copied, cudaEventDisableTiming), "an event");
  }
  check(cudaEventSynchronize(staged.copied), "reusing pinned memory");
  std::memcpy(staged.memory.get(), from.data(), from.size());
  impl_->begin(operation);
  check(cudaMemcpyAsync(operation.writes[0].data, staged.memory.get(), from.size(), cudaMemcpyHostToDevice, on),
        "copying to the device");
  check(cudaEventRecord(staged.copied, on), "copying to the device");
  impl_->end(operation);
}

void CudaBackend::copy_to_host(const Operation& operation) {
  impl_->begin(operation);
  const Operand& from = operation.reads[0];
  const auto bytes = static_cast<std::size_t>(from.numel * size_of(from.dtype));
  void* to = operation.writes.empty() ? nullptr : operation.writes[0].data;
  if (!to) {
    // What stood there before has been read: the host walks the ops in order, and waits before it reads.
    Impl::Counts& counts = impl_->counts[from.data];
    if (counts.room < from.numel) {
      counts.data = impl_->count_memory.get() + impl_->count_bytes_used;
      counts.room = from.numel;
      impl_->count_bytes_used += static_cast<std::int64_t>(bytes);
    }
    counts.numel = from.numel;
    to = counts.data;
  }
  check(cudaMemcpyAsync(to, from.data, bytes, cudaMemcpyDeviceToHost, impl_->stream(operation.op.lane)),
        "copying to the host");
  impl_->end(operation);
}

void CudaBackend::Impl::tell_what_is_not_copied() const {
  for (OpId id = rank.steady_first; id < rank.steady_end; ++id) {
    const auto* collective = std::get_if<Collective>(&rank.ops[id].action);
    if (!collective || collective->carrier != Carrier::copy_engines) continue;
    const Group& group = program.groups[collective->group];
    if (copies->serves(*collective, members_of(transport.rank(), group.size, group.stride))) continue;
    fmt::print(
        stderr,
        "plimsoll-run: rank {}: peers' memory cannot be mapped: NCCL carries what the listing gives to copies, with "
        "kernels and memory that the prediction leaves out\n",
        transport.rank());
    return;
  }
}

void CudaBackend::Impl::all_to_all(const Operation& o, const Collective& c, ncclComm_t communicator, cudaStream_t on) {
  const Group& group = program.groups[c.group];
  const Operand &from = o.reads[0], &to = o.writes[0];
  const auto members = static_cast<std::size_t>(group.size);
  std::vector<std::int64_t> leave(members, c.full_size.count / group.size), arrive = leave;
  if (o.reads.size() == 3) {
    const Shape& shape = rank.buffers[from.buffer].shape;
    const std::int64_t row = shape.numel() / shape.sizes[0] * size_of(from.dtype);
    const auto out = counted(o.reads[1]), in = counted(o.reads[2]);
    const std::size_t local = std::min(out.size(), in.size()) / members;
    for (std::size_t i = 0; i < members; ++i) {
      const auto sum = [&](std::span<const std::int32_t> values) {
        const auto first = values.begin() + static_cast<std::ptrdiff_t>(i * local);
        return row * std::accumulate(first, first + static_cast<std::ptrdiff_t>(local), std::int64_t{0});
      };
      leave[i] = sum(out);
      arrive[i] = sum(in);
    }
    const auto rows_of = [&](const std::vector<std::int64_t>& bytes) {
      return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}) / row;
    };
    check_row_bound({rows_of(arrive), to.numel * size_of(to.dtype) / row, rows_of(leave), group.size},
                    rank.buffers[to.buffer].name);
  }
  check(ncclGroupStart(), "all_to_all");
  std::int64_t send_at = 0, receive_at = 0;
  for (std::size_t i = 0; i < members; ++i) {
    check(ncclSend(from.data + send_at, static_cast<std::size_t>(leave[i]), ncclInt8, static_cast<int>(i), communicator,
                   on),
          "all_to_all");
    check(ncclRecv(to.data + receive_at, static_cast<std::size_t>(arrive[i]), ncclInt8, static_cast<int>(i),
                   communicator, on),
          "all_to_all");
    send_at += leave[i];
    receive_at += arrive[i];
  }
  check(ncclGroupEnd(), "all_to_all");
}

void CudaBackend::communicate(const Operation& o, const Collective& c) {
  Impl& my = *impl_;
  my.begin(o);
  const cudaStream_t on = my.stream(o.op.lane);
  const Group& group = my.program.groups[c.group];
  const Members members = members_of(my.transport.rank(), group.size, group.stride);
  if (my.copies && my.copies->serves(c, members)) {
    const bool first = my.copies->run(o, c, group, members, on);
    my.end(o);
    if (first) my.wait(on);
    return;
  }
  const Operand &from = o.reads[0], &to = o.writes[0];
  if (members.size() == 1) {
    if (from.data != to.data)
      check(cudaMemcpyAsync(to.data, from.data, static_cast<std::size_t>(c.full_size.count), cudaMemcpyDeviceToDevice,
                            on),
            "a collective of one");
    return my.end(o);
  }
  const ncclComm_t communicator = my.communicator(c.group, o.op.lane);
  const ncclDataType_t type = c.dtype == DType::bf16 ? ncclBfloat16 : c.dtype == DType::fp32 ? ncclFloat32 : ncclInt32;
  const auto numel = static_cast<std::size_t>(c.full_size.count / size_of(c.dtype));
  const std::size_t size = members.size();
  switch (c.kind) {
    case CollectiveKind::all_gather: {
      const std::size_t part = numel / size;
      const std::byte* own = from.buffer == to.buffer
                                 ? to.data + members.self * part * static_cast<std::size_t>(size_of(c.dtype))
                                 : from.data;
      check(ncclAllGather(own, to.data, part, type, communicator, on), "all_gather");
      break;
    }
    case CollectiveKind::reduce_scatter:
      if (c.carrier == Carrier::copy_engines) {
        // In place of copies, which cannot reach the peer: of two members, the other's part as it is.
        const auto peer = static_cast<int>(1 - members.self);
        const std::size_t part = numel / size * static_cast<std::size_t>(size_of(c.dtype));
        check(ncclGroupStart(), "reduce_scatter");
        check(ncclSend(from.data + static_cast<std::size_t>(peer) * part, part, ncclInt8, peer, communicator, on),
              "reduce_scatter");
        check(ncclRecv(to.data, part, ncclInt8, peer, communicator, on), "reduce_scatter");
        check(ncclGroupEnd(), "reduce_scatter");
        break;
      }
      check(ncclReduceScatter(from.data, to.data, numel / size, type, ncclSum, communicator, on), "reduce_scatter");
      break;
    case CollectiveKind::all_reduce:
      check(ncclAllReduce(from.data, to.data, numel, type, ncclSum, communicator, on), "all_reduce");
      break;
    case CollectiveKind::all_to_all: my.all_to_all(o, c, communicator, on); break;
    case CollectiveKind::broadcast: CHECK(false, "no engine that is executed broadcasts");
  }
  my.end(o);
}

void CudaBackend::launch(const Operation& operation) {
  impl_->begin(operation);
  impl_->run(operation);
  check(cudaGetLastError(), "launching a kernel");
  impl_->end(operation);
}

}  // namespace plimsoll
