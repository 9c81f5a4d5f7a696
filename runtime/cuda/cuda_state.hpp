// What the CUDA backend holds: streams, events, libraries, communicators (runtime/cuda/cuda_backend.hpp).
#pragma once

#include <array>
#include <chrono>
#include <map>
#include <thread>
#include <tuple>

#include "planner/base/check.hpp"
#include "runtime/cuda/attention.hpp"
#include "runtime/cuda/check_cuda.hpp"
#include "runtime/cuda/cuda_backend.hpp"
#include "runtime/cuda/grouped.hpp"
#include "runtime/cuda/kernels.hpp"
#include "runtime/cuda/peer_copies.hpp"
#include "runtime/cuda/products.hpp"

namespace plimsoll {

using cuda::check;
using cuda::Half;

struct CudaBackend::Impl {
  const StepProgram& program;
  const RankProgram& rank;
  Transport& transport;
  const double timeout_s;
  std::array<cudaStream_t, lane_count> streams{};
  std::map<OpId, cudaEvent_t> events;  ///< of ops that other lanes wait for
  cudaEvent_t join = nullptr;
  std::byte* arena = nullptr;
  Hyperparameters hyperparameters;
  cuda::Products products;
  cuda::Grouped grouped_products;
  cuda::Attention attention;
  cuda::Scratch scratch, constants;
  std::unique_ptr<cuda::PeerCopies> copies;                        ///< null: all by NCCL
  std::map<std::tuple<int, int, Lane>, ncclComm_t> communicators;  ///< by size and stride of the group
  /// Counts on the host, in pinned memory taken once: a pageable copy would block the host for as long as a peer that is gone
  /// does not answer, and taking memory within a step makes the device wait.
  struct Counts {
    std::byte* data = nullptr;
    std::int64_t room = 0, numel = 0;
  };
  std::shared_ptr<std::byte> count_memory;
  std::int64_t count_bytes_used = 0;
  std::map<const std::byte*, Counts> counts;  ///< what was copied to the host, by address on the device
  /// Pinned copies of what goes to the device, two in turn for each op, so that neither the host nor the lane waits.
  struct Staged {
    std::shared_ptr<std::byte> memory;
    cudaEvent_t copied = nullptr;
  };
  std::map<OpId, std::array<Staged, 2>> staged;
  bool recording = false;
  cudaEvent_t mark_start = nullptr;  ///< of what is recorded
  std::vector<cudaEvent_t> mark_events;
  std::size_t marks_used = 0;
  std::vector<OpId> marked;  ///< of each mark in use

  Impl(const StepProgram& p, Transport& t, double timeout)
      : program(p), rank(p.classes.front().program), transport(t), timeout_s(timeout) {}

  cudaStream_t stream(Lane lane) const { return streams[static_cast<std::size_t>(lane)]; }

  void begin(const Operation& o) {
    for (const OpId source : rank.waits(o.op)) {
      const auto event = events.find(source);
      if (event != events.end()) check(cudaStreamWaitEvent(stream(o.op.lane), event->second, 0), "waiting for an op");
    }
    if (recording) mark(o);
  }
  void end(const Operation& o) {
    if (recording) mark(o);
    const auto event = events.find(o.id);
    if (event != events.end()) check(cudaEventRecord(event->second, stream(o.op.lane)), "recording an op");
  }

  /// Remembers when the lane of an op comes here: before it, then after it.
  void mark(const Operation& o) {
    if (marks_used == mark_events.size()) check(cudaEventCreate(&mark_events.emplace_back()), "an event");
    check(cudaEventRecord(mark_events[marks_used++], stream(o.op.lane)), "recording an op");
    marked.push_back(o.id);
  }

  /// Waits for a stream without being stuck for ever with a peer that is gone.  A sleep is longer than it says and the device
  /// would wait for it: it begins when nothing has come for longer than a step takes.
  void wait(cudaStream_t on) const {
    const auto start = std::chrono::steady_clock::now();
    for (;;) {
      const cudaError_t status = cudaStreamQuery(on);
      if (status == cudaSuccess) return;
      if (status != cudaErrorNotReady) check(status, "a kernel of this lane");
      if (transport.is_abandoned()) throw MachineError("waits for its device, but a rank has failed");
      const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
      if (waited.count() > timeout_s) throw MachineError(fmt::format("waited {:.0f} s for its device", timeout_s));
      if (waited.count() > 2) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  /// A communicator for each set of members and lane, so that lanes do not wait for each other; groups of the same members
  /// share it, as each takes half a gibibyte.  Made at its first use, which comes in the same order on all members.
  ncclComm_t communicator(GroupId group, Lane lane) {
    const Group& shape = program.groups[group];
    ncclComm_t& found = communicators[{shape.size, shape.stride, lane}];
    if (found) return found;
    const Members members = members_of(transport.rank(), shape.size, shape.stride);
    ncclUniqueId id{};
    if (members.self == 0) check(ncclGetUniqueId(&id), "an id");
    std::vector<std::span<const std::byte>> send(members.size());
    std::vector<std::span<std::byte>> receive(members.size());
    for (std::size_t i = 0; i < members.size() && members.self == 0; ++i) send[i] = std::as_bytes(std::span(&id, 1));
    if (members.self != 0) receive[0] = std::as_writable_bytes(std::span(&id, 1));
    transport.exchange(members, send, receive);
    check(ncclCommInitRank(&found, static_cast<int>(members.size()), id, static_cast<int>(members.self)),
          "a communicator");
    return found;
  }

  std::span<const std::int32_t> counted(const Operand& operand) const {
    const auto found = counts.find(operand.data);
    CHECK(found != counts.end(), "counts that were not copied to the host");
    return {reinterpret_cast<const std::int32_t*>(found->second.data), static_cast<std::size_t>(found->second.numel)};
  }

  /// Says so, once, where NCCL must serve what the program gives to copy engines.
  void tell_what_is_not_copied() const;
  void regroup(const Operation& o);
  void all_to_all(const Operation& o, const Collective& c, ncclComm_t communicator, cudaStream_t on);
  void grouped(const Operation& o);
  void heads(const Operation& o);
  void experts(const Operation& o);
  void rows(const Operation& o);
  void flat(const Operation& o);
  void run(const Operation& o);
};

}  // namespace plimsoll
