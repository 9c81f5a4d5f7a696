// Ranks over TCP: a star around rank 0, and a watchdog thread in each (calibrate/bench/ranks.hpp).
#include "calibrate/bench/ranks.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <thread>

#include "planner/base/machine_error.hpp"

namespace plimsoll::calibrate {
namespace {

using Clock = std::chrono::steady_clock;

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

void set_timeout(int socket, double seconds) {
  timeval time{};
  time.tv_sec = static_cast<time_t>(seconds);
  time.tv_usec = static_cast<suseconds_t>((seconds - static_cast<double>(time.tv_sec)) * 1e6);
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
  const int one = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

bool write_all(int socket, const void* data, std::size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t got = ::send(socket, at, size, MSG_NOSIGNAL);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    size -= static_cast<std::size_t>(got);
  }
  return true;
}

bool read_all(int socket, void* data, std::size_t size) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t got = recv(socket, at, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) errno = ECONNRESET;
    if (got <= 0) return false;
    at += got;
    size -= static_cast<std::size_t>(got);
  }
  return true;
}

}  // namespace

/// Ends the process when the work under way takes too long, or when a peer's socket closes.
class Ranks::Watchdog {
 public:
  Watchdog(const Ranks& ranks) : ranks_(ranks), thread_([this] { watch(); }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void begin(std::string what, std::function<void()> late) {
    const std::lock_guard lock(mutex_);
    what_ = std::move(what);
    late_ = std::move(late);
    deadline_ =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(ranks_.timeout_s_));
  }
  void end() {
    const std::lock_guard lock(mutex_);
    what_.clear();
    late_ = {};
  }

 private:
  void watch() {
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, std::chrono::milliseconds(100), [this] { return stop_; })) {
      if (what_.empty()) continue;
      if (Clock::now() > deadline_) {
        stop(fmt::format("rank {} on {} took more than {:g} s over {}", ranks_.rank(), host_name(), ranks_.timeout_s_,
                         what_));
      }
      for (std::size_t i = 0; i < ranks_.sockets_.size(); ++i) {
        if (ranks_.sockets_[i] < 0) continue;
        pollfd entry{ranks_.sockets_[i], POLLRDHUP, 0};
        if (poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0)
          stop(fmt::format("rank {} ended during {}", ranks_.rank() == 0 ? i : 0, what_));
      }
    }
  }
  /// The main thread may hang in a library: only the process as a whole can end.
  void stop(const std::string& why) {
    fmt::print(stderr, "plimsoll-calibrate: {}; rank {} stops\n", why, ranks_.rank());
    if (late_) late_();
    _exit(3);
  }

  const Ranks& ranks_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::string what_;
  std::function<void()> late_;
  Clock::time_point deadline_;
  bool stop_ = false;
  std::thread thread_;
};

Ranks::Ranks(RankNames names, double timeout_s) : names_(std::move(names)), timeout_s_(timeout_s) {
  if (world() > 1) {
    if (rank() == 0) {
      listen_for_ranks();
    } else {
      connect_to_first();
    }
  }
  watchdog_ = std::make_unique<Watchdog>(*this);
}

Ranks::~Ranks() {
  watchdog_.reset();
  for (const int socket : sockets_) {
    if (socket >= 0) close(socket);
  }
}

void Ranks::listen_for_ranks() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int one = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<std::uint16_t>(names_.port));
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 || listen(listener, world()) != 0) {
    const std::string reason = std::strerror(errno);
    close(listener);
    throw MachineError(
        fmt::format("rank 0 cannot listen on port {}: {} (PLIMSOLL_PORT chooses another)", names_.port, reason));
  }
  sockets_.assign(static_cast<std::size_t>(world()), -1);
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s_);
  int missing = world() - 1;
  while (missing > 0 && Clock::now() < deadline) {
    pollfd entry{listener, POLLIN, 0};
    if (poll(&entry, 1, 100) <= 0) continue;
    const int peer = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (peer < 0) continue;
    set_timeout(peer, timeout_s_);
    std::array<std::uint32_t, 2> hello{};
    const bool known = read_all(peer, hello.data(), sizeof hello) && hello[0] == static_cast<std::uint32_t>(world()) &&
                       hello[1] > 0 && hello[1] < hello[0] && sockets_[hello[1]] < 0;
    if (!known) {
      close(peer);
      continue;
    }
    sockets_[hello[1]] = peer;
    --missing;
  }
  close(listener);
  if (missing == 0) return;
  std::vector<int> absent;
  for (int i = 1; i < world(); ++i) {
    if (sockets_[static_cast<std::size_t>(i)] < 0) absent.push_back(i);
  }
  throw MachineError(
      fmt::format("of {} ranks these did not come within {:g} s: {}", world(), timeout_s_, fmt::join(absent, ", ")));
}

void Ranks::connect_to_first() {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s_);
  std::string reason = "no answer";
  while (Clock::now() < deadline) {
    addrinfo* found = nullptr;
    const int code = getaddrinfo(names_.master.c_str(), std::to_string(names_.port).c_str(), &hints, &found);
    if (code != 0) {
      reason = gai_strerror(code);
    } else {
      const int peer = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      const bool connected = connect(peer, found->ai_addr, found->ai_addrlen) == 0;
      if (!connected) reason = std::strerror(errno);
      freeaddrinfo(found);
      if (connected) {
        set_timeout(peer, timeout_s_);
        const std::array<std::uint32_t, 2> hello{static_cast<std::uint32_t>(world()),
                                                 static_cast<std::uint32_t>(rank())};
        if (write_all(peer, hello.data(), sizeof hello)) {
          sockets_ = {peer};
          return;
        }
      }
      close(peer);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  throw MachineError(fmt::format("rank {} cannot reach rank 0 at {}:{} within {:g} s: {}", rank(), names_.master,
                                 names_.port, timeout_s_, reason));
}

void Ranks::send(int peer, const std::string& text) {
  const int socket = sockets_[static_cast<std::size_t>(peer)];
  const auto size = static_cast<std::uint32_t>(text.size());
  if (!write_all(socket, &size, sizeof size) || !write_all(socket, text.data(), text.size()))
    throw MachineError(fmt::format("rank {} ended ({})", rank() == 0 ? peer : 0, std::strerror(errno)));
}

std::string Ranks::receive(int peer) {
  const int socket = sockets_[static_cast<std::size_t>(peer)];
  std::uint32_t size = 0;
  constexpr std::uint32_t most = 1U << 20;
  std::string text;
  bool good = read_all(socket, &size, sizeof size) && size <= most;
  if (good) {
    text.resize(size);
    good = read_all(socket, text.data(), size);
  }
  if (good) return text;
  const int named = rank() == 0 ? peer : 0;
  if (errno == EAGAIN || errno == EWOULDBLOCK)
    throw MachineError(fmt::format("rank {} did not answer within {:g} s", named, timeout_s_));
  throw MachineError(fmt::format("rank {} ended", named));
}

std::string Ranks::broadcast(const std::string& text) {
  if (world() == 1) return text;
  if (rank() != 0) return receive(0);
  for (int peer = 1; peer < world(); ++peer) send(peer, text);
  return text;
}

std::vector<std::string> Ranks::gather(const std::string& text) {
  if (rank() != 0) {
    send(0, text);
    return {};
  }
  std::vector<std::string> all{text};
  for (int peer = 1; peer < world(); ++peer) all.push_back(receive(peer));
  return all;
}

double Ranks::maximum(double value) {
  if (world() == 1) return value;
  double most = value;
  for (const std::string& text : gather(fmt::format("{}", value))) most = std::max(most, std::stod(text));
  return std::stod(broadcast(fmt::format("{}", most)));
}

void Ranks::watch(const std::string& what, std::function<void()> late) { watchdog_->begin(what, std::move(late)); }
void Ranks::unwatch() { watchdog_->end(); }

}  // namespace plimsoll::calibrate
