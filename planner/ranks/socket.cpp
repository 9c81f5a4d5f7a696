// Sockets and the loop over them (planner/ranks/socket.hpp).
#include "planner/ranks/socket.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "planner/base/machine_error.hpp"

namespace plimsoll {

namespace {

using Clock = std::chrono::steady_clock;

/// A connected socket that never blocks.
Socket ready(int handle) {
  const int one = 1;
  setsockopt(handle, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  fcntl(handle, F_SETFL, fcntl(handle, F_GETFL) | O_NONBLOCK);
  return Socket(handle);
}

Socket try_connect(const sockaddr* address, socklen_t size) {
  const int handle = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (handle >= 0 && connect(handle, address, size) == 0) return ready(handle);
  const int reason = errno;
  const Socket closes(handle);
  errno = reason;
  return {};
}

/// How far a dialogue has come: the size, then the message, in each direction.
struct Progress {
  const Dialogue& dialogue;
  std::uint64_t send_size, receive_size = 0;
  std::size_t sent = 0, received = 0;  ///< bytes, the sizes' included

  explicit Progress(const Dialogue& d) : dialogue(d), send_size(d.send.size()) {}
  bool sends() const { return sent < sizeof send_size + dialogue.send.size(); }
  bool receives() const { return received < sizeof receive_size + dialogue.receive.size(); }

  /// @return true if bytes moved
  bool write() {
    const bool head = sent < sizeof send_size;
    const std::span<const std::byte> rest =
        head ? std::as_bytes(std::span(&send_size, 1)).subspan(sent) : dialogue.send.subspan(sent - sizeof send_size);
    return advance(::send(dialogue.socket.handle(), rest.data(), rest.size(), MSG_NOSIGNAL), sent);
  }
  bool read() {
    const bool head = received < sizeof receive_size;
    const std::span<std::byte> rest = head ? std::as_writable_bytes(std::span(&receive_size, 1)).subspan(received)
                                           : dialogue.receive.subspan(received - sizeof receive_size);
    const ssize_t got = recv(dialogue.socket.handle(), rest.data(), rest.size(), 0);
    if (got == 0) throw MachineError(fmt::format("rank {} ended", dialogue.rank));
    const bool moved = advance(got, received);
    if (moved && received == sizeof receive_size && receive_size != dialogue.receive.size())
      throw MachineError(fmt::format("rank {} sent {} bytes where {} were due: do all ranks run the same command?",
                                     dialogue.rank, receive_size, dialogue.receive.size()));
    return moved;
  }

 private:
  bool advance(ssize_t moved, std::size_t& at) const {
    if (moved < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
      throw MachineError(fmt::format("rank {} ended ({})", dialogue.rank, std::strerror(errno)));
    if (moved <= 0) return false;
    at += static_cast<std::size_t>(moved);
    return true;
  }
};

/// Waits a little for any of the sockets, then moves what can be moved.  @return true if anything was
bool move_some(std::vector<Progress>& all) {
  std::vector<pollfd> entries;
  std::vector<Progress*> owners;
  for (Progress& progress : all) {
    const int events = (progress.sends() ? POLLOUT : 0) | (progress.receives() ? POLLIN : 0);
    if (events == 0) continue;
    entries.push_back({progress.dialogue.socket.handle(), static_cast<short>(events), 0});
    owners.push_back(&progress);
  }
  bool moved = false;
  if (poll(entries.data(), entries.size(), 100) <= 0) return moved;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const short seen = entries[i].revents;
    if ((seen & POLLOUT) != 0 && owners[i]->sends()) moved = owners[i]->write() || moved;
    if ((seen & (POLLIN | POLLHUP | POLLERR)) != 0 && owners[i]->receives()) moved = owners[i]->read() || moved;
  }
  return moved;
}

}  // namespace

Socket::~Socket() {
  if (handle_ >= 0) close(handle_);
}

std::uint32_t Socket::peer_address() const {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  getpeername(handle_, reinterpret_cast<sockaddr*>(&address), &size);
  return address.sin_addr.s_addr;
}

std::pair<Socket, std::uint16_t> listen_on(std::uint16_t port, int most) {
  Socket listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int one = 1;
  setsockopt(listener.handle(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  sockaddr_in address{};
  socklen_t size = sizeof address;
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(port);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener.handle(), generic, size) != 0 || listen(listener.handle(), most) != 0 ||
      getsockname(listener.handle(), generic, &size) != 0)
    throw MachineError(
        fmt::format("cannot listen on port {}: {} (PLIMSOLL_PORT chooses another)", port, std::strerror(errno)));
  return {std::move(listener), ntohs(address.sin_port)};
}

Socket accept_from(const Socket& listener, Timeout timeout) {
  pollfd entry{listener.handle(), POLLIN, 0};
  if (poll(&entry, 1, static_cast<int>(timeout.count() * 1000)) <= 0) return {};
  const int handle = accept4(listener.handle(), nullptr, nullptr, SOCK_CLOEXEC);
  return handle < 0 ? Socket() : ready(handle);
}

Socket connect_to(const std::string& host, std::uint16_t port, Timeout timeout) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  const auto deadline = Clock::now() + timeout;
  std::string reason = "no answer";
  do {
    addrinfo* found = nullptr;
    if (const int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); code != 0) {
      reason = gai_strerror(code);
    } else {
      Socket connected = try_connect(found->ai_addr, found->ai_addrlen);
      reason = std::strerror(errno);
      freeaddrinfo(found);
      if (connected) return connected;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  } while (Clock::now() < deadline);
  throw MachineError(fmt::format("cannot reach {}:{} within {:.0f} s: {}", host, port, timeout.count(), reason));
}

Socket connect_to(std::uint32_t address, std::uint16_t port, Timeout timeout) {
  std::array<char, INET_ADDRSTRLEN> text{};
  inet_ntop(AF_INET, &address, text.data(), text.size());
  return connect_to(text.data(), port, timeout);
}

void converse(const std::vector<Dialogue>& dialogues, Timeout timeout) {
  std::vector<Progress> all(dialogues.begin(), dialogues.end());
  auto last = Clock::now();
  for (;;) {
    std::vector<int> late;
    for (const Progress& progress : all) {
      if (progress.sends() || progress.receives()) late.push_back(progress.dialogue.rank);
    }
    if (late.empty()) return;
    if (move_some(all)) {
      last = Clock::now();
    } else if (Clock::now() - last > timeout) {
      throw MachineError(fmt::format("waited {:g} s for rank {}", timeout.count(), fmt::join(late, ", ")));
    }
  }
}

}  // namespace plimsoll
