// Collectives by the copy engines: each member copies from its peers' memory what it needs, so that no multiprocessor is kept
// from the products beside.  Which ones, the program says (reference_carrier in planner/spec/topology.hpp); where the memory of
// a peer cannot be mapped, NCCL serves them.
//
// Turns: the k-th collective of a channel (a group on a lane) begins on a member when all members have said "ready k", and it
// ends when all have said "done k" - that they have read what they need of this member's memory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "planner/step/program.hpp"
#include "runtime/core/backend.hpp"
#include "runtime/cuda/check_cuda.hpp"
#include "runtime/cuda/peers.hpp"

namespace plimsoll::cuda {

class PeerCopies {
 public:
  /// All ranks call.  @param arena of this rank, an allocation of its own; the transport outlives this
  PeerCopies(Transport& transport, std::byte* arena);
  ~PeerCopies();
  PeerCopies(const PeerCopies&) = delete;
  PeerCopies& operator=(const PeerCopies&) = delete;

  /// True if a collective of this carrier and these members can go this way; all of them find the same.
  bool serves(const Collective& collective, const Members& members) const;
  /// All members call, in the same order.
  /// @returns true if it is the first time of this op, for which the caller is to wait: what an op does once - taking memory,
  ///   loading kernels - may hold the whole process until its devices are idle, and they are not while they wait for a peer
  ///   whose thread is held
  /// @throws MachineError if a call of the driver fails
  bool run(const Operation& operation, const Collective& collective, const Group& group, const Members& members,
           cudaStream_t stream);
  /// See Peers::release.
  void release(std::span<const cudaStream_t> streams) { peers_.release(streams); }

 private:
  struct Driver;
  struct Channel {
    std::size_t index = 0;
    std::uint32_t turn = 0;  ///< of the collective under way
  };
  enum class Word { ready, done };
  std::uint32_t* flag(int of_rank, const Channel& channel, Word word, std::size_t member) const;
  void tell(const Channel& channel, Word word, const Members& members, cudaStream_t stream) const;
  void await(const Channel& channel, Word word, const Members& members, cudaStream_t stream) const;
  const std::vector<std::byte*>& sources(OpId op, const std::byte* own, const Members& members);
  void reduce_scatter(const Operation& operation, std::size_t part, const Channel& channel, const Members& members,
                      const std::vector<std::byte*>& from, cudaStream_t stream);
  void all_gather(const Operation& operation, std::size_t part, const Channel& channel, const Members& members,
                  const std::vector<std::byte*>& from, cudaStream_t stream);
  void all_reduce(const Operation& operation, const Collective& collective, const Channel& channel,
                  const Members& members, const std::vector<std::byte*>& from, cudaStream_t stream);

  Transport& transport_;
  Peers peers_;
  std::unique_ptr<Driver> driver_;
  std::map<std::tuple<int, int, Lane>, Channel> channels_;  // by size and stride of the group
  std::map<OpId, std::vector<std::byte*>> sources_;         // of each op's data, by member
  cudaStream_t beside_ = nullptr;                           // copies a rank's own part while those of others come
  cudaEvent_t begun_ = nullptr, copied_ = nullptr;
  Scratch parts_;  // of all members, in an all-reduce
};

}  // namespace plimsoll::cuda
