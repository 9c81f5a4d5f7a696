// Copies between peers in turns (runtime/cuda/peer_copies.hpp).
#include "runtime/cuda/peer_copies.hpp"

#include <cuda.h>

#include <type_traits>

#include "planner/base/check.hpp"
#include "planner/spec/topology.hpp"
#include "runtime/cuda/kernels.hpp"

namespace plimsoll::cuda {

namespace {

void check(CUresult status, const char* what) {
  if (status != CUDA_SUCCESS) throw MachineError(fmt::format("CUDA: {}: error {}", what, static_cast<int>(status)));
}

template <class Function>
Function* entry(const char* name) {
  constexpr unsigned since = 12000;  // the version whose form of the call is meant
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  cuda::check(cudaGetDriverEntryPointByVersion(name, &found, since, cudaEnableDefault, &result), name);
  if (found == nullptr) throw MachineError(fmt::format("CUDA: the driver has no {}", name));
  return reinterpret_cast<Function*>(found);
}

}  // namespace

/// The driver's calls that the runtime library does not offer.
struct PeerCopies::Driver {
  decltype(&cuStreamBatchMemOp) batch =
      entry<std::remove_pointer_t<decltype(&cuStreamBatchMemOp)>>("cuStreamBatchMemOp");

  void run(std::vector<CUstreamBatchMemOpParams>& words, cudaStream_t stream) const {
    check(batch(stream, static_cast<unsigned>(words.size()), words.data(), 0), "flags of peers");
  }
};

PeerCopies::PeerCopies(Transport& transport, std::byte* arena)
    : transport_(transport), peers_(transport, arena), driver_(std::make_unique<Driver>()) {
  // Nothing is taken or loaded while a peer may wait: it could hold both.
  parts_.of(lane_count * peers_.reached() * static_cast<std::size_t>(most_copied_sum.count));
  load_sums();
  cuda::check(cudaStreamCreateWithFlags(&beside_, cudaStreamNonBlocking), "a stream");
  cuda::check(cudaEventCreateWithFlags(&begun_, cudaEventDisableTiming), "an event");
  cuda::check(cudaEventCreateWithFlags(&copied_, cudaEventDisableTiming), "an event");
}

PeerCopies::~PeerCopies() {
  cudaEventDestroy(begun_);
  cudaEventDestroy(copied_);
  cudaStreamDestroy(beside_);
}

bool PeerCopies::serves(const Collective& collective, const Members& members) const {
  return collective.carrier == Carrier::copy_engines && peers_.reach_each_other(members);
}

std::uint32_t* PeerCopies::flag(int of_rank, const Channel& channel, Word word, std::size_t member) const {
  const auto most = static_cast<std::size_t>(peers_.world());
  return peers_.flags(of_rank) + (channel.index * 2 + (word == Word::done ? 1 : 0)) * most + member;
}

/// Writes this turn into this member's word at every peer; what the stream did before is seen by who sees the word.
void PeerCopies::tell(const Channel& channel, Word word, const Members& members, cudaStream_t stream) const {
  std::vector<CUstreamBatchMemOpParams> words;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (i == members.self) continue;
    CUstreamBatchMemOpParams& one = words.emplace_back();
    one.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    one.writeValue.address = reinterpret_cast<CUdeviceptr>(flag(members.ranks[i], channel, word, members.self));
    one.writeValue.value = channel.turn;
    one.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
  }
  driver_->run(words, stream);
}

/// Holds the stream until every peer's word here has come to this turn.
void PeerCopies::await(const Channel& channel, Word word, const Members& members, cudaStream_t stream) const {
  std::vector<CUstreamBatchMemOpParams> words;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (i == members.self) continue;
    CUstreamBatchMemOpParams& one = words.emplace_back();
    one.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    one.waitValue.address = reinterpret_cast<CUdeviceptr>(flag(members.ranks[members.self], channel, word, i));
    one.waitValue.value = channel.turn;
    one.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
  }
  driver_->run(words, stream);
}

/// Where the members' data of an op lie, as this rank's device sees them.  Told once: buffers keep their places.
const std::vector<std::byte*>& PeerCopies::sources(OpId op, const std::byte* own, const Members& members) {
  const auto [found, added] = sources_.try_emplace(op);
  if (!added) return found->second;
  const std::int64_t offset = own - peers_.arena(transport_.rank());
  std::vector<std::int64_t> offsets(members.size(), offset);
  std::vector<std::span<std::byte>> receive;
  for (std::int64_t& one : offsets) receive.push_back(std::as_writable_bytes(std::span(&one, 1)));
  transport_.exchange(members, std::vector(members.size(), std::as_bytes(std::span(&offset, 1))), receive);
  for (std::size_t i = 0; i < members.size(); ++i) found->second.push_back(peers_.arena(members.ranks[i]) + offsets[i]);
  return found->second;
}

void PeerCopies::all_gather(const Operation& operation, std::size_t part, const Channel& channel,
                            const Members& members, const std::vector<std::byte*>& from, cudaStream_t stream) {
  std::byte* to = operation.writes[0].data;
  const bool in_place = operation.reads[0].buffer == operation.writes[0].buffer;
  if (!in_place) {
    cuda::check(cudaEventRecord(begun_, stream), "all_gather");
    cuda::check(cudaStreamWaitEvent(beside_, begun_, 0), "all_gather");
    cuda::check(cudaMemcpyAsync(to + members.self * part, from[members.self], part, cudaMemcpyDefault, beside_),
                "all_gather");
    cuda::check(cudaEventRecord(copied_, beside_), "all_gather");
  }
  await(channel, Word::ready, members, stream);
  for (std::size_t away = 1; away < members.size(); ++away) {
    const std::size_t i = (members.self + away) % members.size();  // no two members begin with the same peer
    cuda::check(cudaMemcpyAsync(to + i * part, from[i], part, cudaMemcpyDefault, stream), "all_gather");
  }
  tell(channel, Word::done, members, stream);
  if (!in_place) cuda::check(cudaStreamWaitEvent(stream, copied_, 0), "all_gather");
  await(channel, Word::done, members, stream);
}

/// Whole buffers come over and are added in the order of ranks, so that all members hold the same sum, bit for bit.
void PeerCopies::all_reduce(const Operation& operation, const Collective& collective, const Channel& channel,
                            const Members& members, const std::vector<std::byte*>& from, cudaStream_t stream) {
  const auto bytes = static_cast<std::size_t>(collective.full_size.count);
  const std::size_t stride = (bytes + 15) / 16 * 16;
  const std::size_t of_lane = parts_.size() / lane_count, lane = static_cast<std::size_t>(operation.op.lane);
  CHECK(members.size() * stride <= of_lane, "room for the parts of a sum");
  std::byte* parts = static_cast<std::byte*>(parts_.of(0)) + lane * of_lane;
  await(channel, Word::ready, members, stream);
  for (std::size_t i = 0; i < members.size(); ++i)
    cuda::check(cudaMemcpyAsync(parts + i * stride, from[i], bytes, cudaMemcpyDefault, stream), "all_reduce");
  tell(channel, Word::done, members, stream);
  await(channel, Word::done, members, stream);  // before what was read is overwritten
  const auto add = [&](auto* to) {
    using Number = std::remove_pointer_t<decltype(to)>;
    constexpr auto size = static_cast<std::int64_t>(sizeof(Number));
    sum_parts(reinterpret_cast<const Number*>(parts), static_cast<std::int64_t>(stride) / size,
              static_cast<int>(members.size()), to, collective.full_size.count / size, stream);
  };
  CHECK(collective.dtype == DType::fp32 || collective.dtype == DType::bf16, "a sum in fp32 or bf16");
  if (collective.dtype == DType::fp32) return add(reinterpret_cast<float*>(operation.writes[0].data));
  add(reinterpret_cast<Half*>(operation.writes[0].data));
}

/// Of two members: the other's part comes over; who reads it adds.
void PeerCopies::reduce_scatter(const Operation& operation, std::size_t part, const Channel& channel,
                                const Members& members, const std::vector<std::byte*>& from, cudaStream_t stream) {
  CHECK(members.size() == 2, "a reduce-scatter of two");
  await(channel, Word::ready, members, stream);
  cuda::check(cudaMemcpyAsync(operation.writes[0].data, from[1 - members.self] + members.self * part, part,
                              cudaMemcpyDefault, stream),
              "reduce_scatter");
  tell(channel, Word::done, members, stream);
  await(channel, Word::done, members, stream);
}

bool PeerCopies::run(const Operation& operation, const Collective& collective, const Group& group,
                     const Members& members, cudaStream_t stream) {
  const auto [found, added] = channels_.try_emplace({group.size, group.stride, operation.op.lane});
  Channel& channel = found->second;
  if (added) channel.index = channels_.size() - 1;
  CHECK((channel.index + 1) * 2 * static_cast<std::size_t>(peers_.world()) <= Peers::flag_count, "room for flags");
  ++channel.turn;
  const bool first = sources_.count(operation.id) == 0;
  const Operand &read = operation.reads[0], &write = operation.writes[0];
  const std::size_t part = static_cast<std::size_t>(collective.full_size.count) / members.size();
  const bool gathers = collective.kind == CollectiveKind::all_gather;
  std::byte* own = gathers && read.buffer == write.buffer ? write.data + members.self * part : read.data;
  const std::vector<std::byte*>& from = sources(operation.id, own, members);
  tell(channel, Word::ready, members, stream);
  if (gathers) {
    all_gather(operation, part, channel, members, from, stream);
  } else if (collective.kind == CollectiveKind::all_reduce) {
    all_reduce(operation, collective, channel, members, from, stream);
  } else {
    reduce_scatter(operation, part, channel, members, from, stream);
  }
  return first;
}

}  // namespace plimsoll::cuda
