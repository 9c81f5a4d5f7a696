// Whose memory does this rank's device reach?  Of ranks in one process directly, of other processes of the host by CUDA's
// handles (IPC), of other hosts never.  What is mapped: each rank's arena and its flags, words that peers write to say how far
// they are.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/host/transport.hpp"

namespace plimsoll::cuda {

class Peers {
 public:
  static constexpr std::size_t flag_count = std::size_t{1}
                                            << 19;  ///< words of 4 bytes: one page of the device's, 2 MiB

  /// All ranks call; each learns what every rank reaches.  Two ranks on one device do not reach each other.
  /// @param arena the start of this rank's arena, an allocation of its own
  /// @throws MachineError if the device has no room for the flags, or a rank does not answer
  Peers(Transport& transport, std::byte* arena);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  /// True if every member reaches every other; all members know the same.
  bool reach_each_other(const Members& members) const;
  /// As this rank's device sees them; null where it does not reach the rank.
  std::byte* arena(int rank) const { return mapped_[static_cast<std::size_t>(rank)].arena; }
  std::uint32_t* flags(int rank) const { return mapped_[static_cast<std::size_t>(rank)].flags; }
  /// Ranks that this one reaches, and itself.
  std::size_t reached() const;
  int world() const { return static_cast<int>(mapped_.size()); }
  /// Lets go what waits on this rank's flags, until these streams have ended; for a rank whose peers may be gone.
  void release(std::span<const cudaStream_t> streams);

 private:
  struct Mapped {
    std::byte* arena = nullptr;
    std::uint32_t* flags = nullptr;
    bool by_handle = false;
  };
  const std::size_t self_;
  std::vector<Mapped> mapped_;              // by rank
  std::vector<std::vector<char>> reaches_;  // [rank][rank]
  cudaStream_t apart_ = nullptr;            // on which flags are let go
};

}  // namespace plimsoll::cuda
