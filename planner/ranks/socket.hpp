// A TCP socket that is closed once, and messages over several of them at the same time: sizes travel ahead, nothing blocks for
// longer than a timeout, and a peer that has ended is named.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace plimsoll {

using Timeout = std::chrono::duration<double>;

class Socket {
 public:
  Socket() = default;
  explicit Socket(int handle) : handle_(handle) {}
  Socket(Socket&& other) noexcept : handle_(std::exchange(other.handle_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Socket();
  int handle() const { return handle_; }
  explicit operator bool() const { return handle_ >= 0; }

  /// The IPv4 address of the other end, in network order.
  std::uint32_t peer_address() const;

 private:
  int handle_ = -1;
};

/// Listens on a port of all addresses; port 0: any.  @return the socket and its port  @throws MachineError
std::pair<Socket, std::uint16_t> listen_on(std::uint16_t port, int most);
/// The next connection, none if the timeout is over.
Socket accept_from(const Socket& listener, Timeout timeout);
/// Tries until the timeout.  @throws MachineError with the last reason
Socket connect_to(const std::string& host, std::uint16_t port, Timeout timeout);
/// @param address IPv4, in network order
Socket connect_to(std::uint32_t address, std::uint16_t port, Timeout timeout);

/// What goes to and comes from one peer.
struct Dialogue {
  const Socket& socket;
  int rank = 0;  ///< of the peer, for messages
  std::span<const std::byte> send;
  std::span<std::byte> receive;
};

/// One message each way with every peer, all at once.  Both sides state the sizes.
/// @throws MachineError naming the ranks that ended, or that nothing came from or went to for as long as the timeout
void converse(const std::vector<Dialogue>& dialogues, Timeout timeout);

}  // namespace plimsoll
