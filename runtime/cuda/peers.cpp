// Mapping of peers (runtime/cuda/peers.hpp).
#include "runtime/cuda/peers.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "runtime/cuda/check_cuda.hpp"

namespace plimsoll::cuda {

namespace {

constexpr std::size_t flag_bytes = Peers::flag_count * sizeof(std::uint32_t);

/// What a rank tells the others of itself.
struct Card {
  std::array<char, 40> boot{};  ///< the host, by its boot
  std::uint64_t process = 0;    ///< a number that no other process has drawn
  int device = 0;               ///< as the process numbers it
  std::array<char, 16> bus{};   ///< as the host numbers it
  bool has_handles = false;
  std::byte* arena = nullptr;
  std::uint32_t* flags = nullptr;
  cudaIpcMemHandle_t arena_handle{}, flags_handle{};
};

std::uint64_t this_process() {
  static const std::uint64_t drawn = [] {
    std::random_device random;
    return std::uint64_t{random()} << 32U | random();
  }();
  return drawn;
}

Card own_card(std::byte* arena, std::uint32_t* flags) {
  Card card;
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  boot.copy(card.boot.data(), card.boot.size() - 1);
  card.process = this_process();
  check(cudaGetDevice(&card.device), "which device");
  check(cudaDeviceGetPCIBusId(card.bus.data(), static_cast<int>(card.bus.size()), card.device), "which device");
  card.arena = arena;
  card.flags = flags;
  card.has_handles = cudaIpcGetMemHandle(&card.arena_handle, arena) == cudaSuccess &&
                     cudaIpcGetMemHandle(&card.flags_handle, flags) == cudaSuccess;
  cudaGetLastError();  // what cannot be mapped is not an error
  return card;
}

bool reaches_device(int from, int to) {
  int can = 0;
  if (cudaDeviceCanAccessPeer(&can, from, to) != cudaSuccess || can == 0) return false;
  const cudaError_t status = cudaDeviceEnablePeerAccess(to, 0);
  cudaGetLastError();
  return status == cudaSuccess || status == cudaErrorPeerAccessAlreadyEnabled;
}

void* opened(const cudaIpcMemHandle_t& handle) {
  void* memory = nullptr;
  const bool open = cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess;
  cudaGetLastError();
  return open ? memory : nullptr;
}

/// What every rank says to every other, by rank.
template <class T>
std::vector<std::vector<T>> told_by_all(Transport& transport, const std::vector<T>& own) {
  const Members all = members_of(transport.rank(), transport.world(), 1);
  std::vector<std::vector<T>> told(all.size(), std::vector<T>(own.size()));
  std::vector<std::span<const std::byte>> send(all.size(), std::as_bytes(std::span(own)));
  std::vector<std::span<std::byte>> receive;
  for (std::vector<T>& one : told) receive.push_back(std::as_writable_bytes(std::span(one)));
  told[all.self] = own;
  transport.exchange(all, send, receive);
  return told;
}

}  // namespace

Peers::Peers(Transport& transport, std::byte* arena)
    : self_(static_cast<std::size_t>(transport.rank())), mapped_(static_cast<std::size_t>(transport.world())) {
  void* flags = nullptr;
  check(cudaMalloc(&flags, flag_bytes), "allocating flags");
  check(cudaMemset(flags, 0, flag_bytes), "clearing flags");
  check(cudaDeviceSynchronize(), "clearing flags");
  check(cudaStreamCreateWithFlags(&apart_, cudaStreamNonBlocking), "a stream");
  mapped_[self_] = {arena, static_cast<std::uint32_t*>(flags), false};
  const Card own = own_card(arena, mapped_[self_].flags);
  const auto cards = told_by_all<Card>(transport, {own});
  std::vector<char> reached(mapped_.size());
  for (std::size_t rank = 0; rank < mapped_.size(); ++rank) {
    const Card& card = cards[rank].front();
    if (rank == self_ || card.boot != own.boot || card.bus == own.bus) continue;
    if (card.process == own.process) {
      if (reaches_device(own.device, card.device)) mapped_[rank] = {card.arena, card.flags, false};
    } else if (own.has_handles && card.has_handles) {
      auto* peer_arena = static_cast<std::byte*>(opened(card.arena_handle));
      auto* peer_flags = static_cast<std::uint32_t*>(opened(card.flags_handle));
      mapped_[rank] = {peer_arena, peer_flags, true};
    }
    reached[rank] = mapped_[rank].arena != nullptr && mapped_[rank].flags != nullptr ? 1 : 0;
  }
  reaches_ = told_by_all<char>(transport, reached);
}

Peers::~Peers() {
  for (const Mapped& peer : mapped_) {
    if (!peer.by_handle) continue;
    if (peer.arena != nullptr) cudaIpcCloseMemHandle(peer.arena);
    if (peer.flags != nullptr) cudaIpcCloseMemHandle(peer.flags);
  }
  cudaFree(mapped_[self_].flags);
  cudaStreamDestroy(apart_);
}

std::size_t Peers::reached() const {
  return static_cast<std::size_t>(
      std::count_if(mapped_.begin(), mapped_.end(), [](const Mapped& rank) { return rank.arena != nullptr; }));
}

bool Peers::reach_each_other(const Members& members) const {
  for (const int from : members.ranks) {
    for (const int to : members.ranks) {
      if (from != to && reaches_[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)] == 0) return false;
    }
  }
  return true;
}

void Peers::release(std::span<const cudaStream_t> streams) {
  // A peer that still runs may set a flag back to its own count: once is not enough.
  constexpr int far_ahead = 0x40, most_turns = 2000;  // in each byte: beyond any count
  const auto runs = [](cudaStream_t stream) { return cudaStreamQuery(stream) == cudaErrorNotReady; };
  for (int turn = 0; turn < most_turns && std::any_of(streams.begin(), streams.end(), runs); ++turn) {
    cudaMemsetAsync(mapped_[self_].flags, far_ahead, flag_bytes, apart_);
    if (cudaStreamSynchronize(apart_) != cudaSuccess) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace plimsoll::cuda
