// The meeting at rank 0, and messages between all pairs (runtime/tcp/tcp_world.hpp).
#include "runtime/tcp/tcp_world.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <thread>

#include "planner/base/machine_error.hpp"
#include "runtime/tcp/socket.hpp"

namespace plimsoll {

namespace {

/// What a rank says when it comes: how many it believes there are, who it is, where it listens.
struct Hello {
  std::uint32_t sign = 0x504c494d, world = 0, rank = 0, port = 0;
};
/// Where a rank listens; the address in network order.
struct Place {
  std::uint32_t address = 0, port = 0;
};

/// How long a connection that says nothing may keep the others waiting.
constexpr Timeout polite{5};

bool is_loopback(std::uint32_t address) { return ntohl(address) >> 24 == 127; }

class TcpTransport final : public Transport {
 public:
  TcpTransport(RankNames names, Timeout timeout) : names_(std::move(names)), timeout_(timeout) {
    peers_.resize(static_cast<std::size_t>(names_.world));
    const auto port = static_cast<std::uint16_t>(rank() == 0 ? names_.port : 0);
    auto [listener, own_port] = listen_on(port, world());
    std::vector<Place> places(peers_.size());
    if (rank() == 0) {
      accept_ranks(listener, 1, &places);
      for (int peer = 1; peer < world(); ++peer) converse({{at(peer), peer, bytes_of(places), {}}}, timeout_);
      return;
    }
    at(0) = connect_to(names_.master, static_cast<std::uint16_t>(names_.port), timeout_);
    greet(0, own_port);
    converse({{at(0), 0, {}, std::as_writable_bytes(std::span(places))}}, timeout_);
    for (int peer = 1; peer < rank(); ++peer) {
      const Place& place = places[static_cast<std::size_t>(peer)];
      // Who reached rank 0 over its loopback is on its node, and this rank knows a way there.
      const std::uint32_t address = is_loopback(place.address) ? at(0).peer_address() : place.address;
      at(peer) = connect_to(address, static_cast<std::uint16_t>(place.port), timeout_);
      greet(peer, own_port);
    }
    accept_ranks(listener, rank() + 1, nullptr);
  }

  int rank() const override { return names_.rank; }
  int world() const override { return names_.world; }

  void exchange(const Members& members, const std::vector<std::span<const std::byte>>& send,
                const std::vector<std::span<std::byte>>& receive) override {
    std::vector<Dialogue> dialogues;
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (i != members.self) dialogues.push_back({at(members.ranks[i]), members.ranks[i], send[i], receive[i]});
    }
    converse(dialogues, timeout_);
  }

  void abandon() override {
    // Where another rank's end is the cause, the others see for themselves whose it was, rather than this one's.
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    for (const Socket& peer : peers_) shutdown(peer.handle(), SHUT_RDWR);
  }
  bool is_abandoned() const override {
    std::vector<pollfd> entries;
    for (const Socket& peer : peers_) {
      if (peer) entries.push_back({peer.handle(), POLLRDHUP, 0});
    }
    return poll(entries.data(), entries.size(), 0) > 0;
  }

 private:
  Socket& at(int peer) { return peers_[static_cast<std::size_t>(peer)]; }
  template <class T>
  static std::span<const std::byte> bytes_of(const std::vector<T>& values) {
    return std::as_bytes(std::span(values));
  }

  void greet(int peer, std::uint16_t own_port) {
    Hello hello;
    hello.world = static_cast<std::uint32_t>(world());
    hello.rank = static_cast<std::uint32_t>(rank());
    hello.port = own_port;
    converse({{at(peer), peer, std::as_bytes(std::span(&hello, 1)), {}}}, timeout_);
  }

  /// Takes the ranks from `first` on; whoever else comes is turned away.
  void accept_ranks(const Socket& listener, int first, std::vector<Place>* places) {
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    int missing = world() - first;
    while (missing > 0 && std::chrono::steady_clock::now() < deadline) {
      Socket guest = accept_from(listener, Timeout(0.1));
      if (!guest) continue;
      Hello hello;
      try {
        converse({{guest, -1, {}, std::as_writable_bytes(std::span(&hello, 1))}}, std::min(polite, timeout_));
      } catch (const MachineError&) {
        continue;
      }
      const bool known = hello.sign == Hello().sign && hello.world == peers_.size() &&
                         hello.rank >= static_cast<std::uint32_t>(first) && hello.rank < hello.world &&
                         !peers_[hello.rank];
      if (!known) continue;
      if (places) (*places)[hello.rank] = {guest.peer_address(), hello.port};
      peers_[hello.rank] = std::move(guest);
      --missing;
    }
    if (missing == 0) return;
    std::vector<int> absent;
    for (int peer = first; peer < world(); ++peer) {
      if (!at(peer)) absent.push_back(peer);
    }
    throw MachineError(fmt::format("of {} ranks that {} started these did not come within {:.0f} s: {}", world(),
                                   names_.launcher, timeout_.count(), fmt::join(absent, ", ")));
  }

  const RankNames names_;
  const Timeout timeout_;
  std::vector<Socket> peers_;  // by rank; none to itself
};

}  // namespace

std::unique_ptr<Transport> connect_by_tcp(const RankNames& names, std::chrono::duration<double> timeout) {
  return std::make_unique<TcpTransport>(names, timeout);
}

}  // namespace plimsoll
