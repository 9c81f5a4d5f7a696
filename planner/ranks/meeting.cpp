// Who comes to rank 0, and who then connects to whom (planner/ranks/meeting.hpp).
#include "planner/ranks/meeting.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>

#include "planner/base/machine_error.hpp"

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

class Meeting {
 public:
  Meeting(const RankNames& names, Timeout timeout)
      : names_(names), timeout_(timeout), peers_(static_cast<std::size_t>(names.world)) {}

  std::vector<Socket> star() && {
    if (names_.rank == 0) {
      accept_ranks(listen_on(static_cast<std::uint16_t>(names_.port), names_.world).first, 1, nullptr);
    } else {
      come_to_first(0);
    }
    return std::move(peers_);
  }

  std::vector<Socket> all() && {
    const auto port = static_cast<std::uint16_t>(names_.rank == 0 ? names_.port : 0);
    auto [listener, own_port] = listen_on(port, names_.world);
    std::vector<Place> places(peers_.size());
    if (names_.rank == 0) {
      accept_ranks(listener, 1, &places);
      for (int peer = 1; peer < names_.world; ++peer)
        converse({{at(peer), peer, std::as_bytes(std::span(places)), {}}}, timeout_);
      return std::move(peers_);
    }
    come_to_first(own_port);
    converse({{at(0), 0, {}, std::as_writable_bytes(std::span(places))}}, timeout_);
    for (int peer = 1; peer < names_.rank; ++peer) {
      const Place& place = places[static_cast<std::size_t>(peer)];
      // Who reached rank 0 over its loopback is on its node, and this rank knows a way there.
      const std::uint32_t address = is_loopback(place.address) ? at(0).peer_address() : place.address;
      at(peer) = connect_to(address, static_cast<std::uint16_t>(place.port), timeout_);
      greet(peer, own_port);
    }
    accept_ranks(listener, names_.rank + 1, nullptr);
    return std::move(peers_);
  }

 private:
  Socket& at(int peer) { return peers_[static_cast<std::size_t>(peer)]; }

  void come_to_first(std::uint16_t own_port) {
    at(0) = connect_to(names_.master, static_cast<std::uint16_t>(names_.port), timeout_);
    greet(0, own_port);
  }

  void greet(int peer, std::uint16_t own_port) {
    Hello hello;
    hello.world = static_cast<std::uint32_t>(names_.world);
    hello.rank = static_cast<std::uint32_t>(names_.rank);
    hello.port = own_port;
    converse({{at(peer), peer, std::as_bytes(std::span(&hello, 1)), {}}}, timeout_);
  }

  /// Takes the ranks from `first` on; whoever else comes is turned away.
  void accept_ranks(const Socket& listener, int first, std::vector<Place>* places) {
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    int missing = names_.world - first;
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
    for (int peer = first; peer < names_.world; ++peer) {
      if (!at(peer)) absent.push_back(peer);
    }
    throw MachineError(fmt::format("of {} ranks that {} started these did not come within {:g} s: {}", names_.world,
                                   names_.launcher, timeout_.count(), fmt::join(absent, ", ")));
  }

  const RankNames& names_;
  const Timeout timeout_;
  std::vector<Socket> peers_;  // by rank
};

}  // namespace

std::vector<Socket> connect_to_first(const RankNames& names, Timeout timeout) { return Meeting(names, timeout).star(); }
std::vector<Socket> connect_all(const RankNames& names, Timeout timeout) { return Meeting(names, timeout).all(); }

}  // namespace plimsoll
