// Ranks over TCP: a star around rank 0, and a watchdog thread in each (calibrate/bench/ranks.hpp).
#include "calibrate/bench/ranks.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>

#include "planner/base/machine_error.hpp"
#include "planner/ranks/meeting.hpp"

namespace plimsoll::calibrate {
namespace {

using Clock = std::chrono::steady_clock;

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
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
        if (!ranks_.sockets_[i]) continue;
        pollfd entry{ranks_.sockets_[i].handle(), POLLRDHUP, 0};
        if (poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0)
          stop(fmt::format("rank {} ended during {}", i, what_));
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
  if (world() > 1) sockets_ = connect_to_first(names_, Timeout(timeout_s_));
  watchdog_ = std::make_unique<Watchdog>(*this);
}

Ranks::~Ranks() { watchdog_.reset(); }

void Ranks::send(int peer, const std::string& text) {
  const auto size = static_cast<std::uint32_t>(text.size());
  const Socket& socket = sockets_[static_cast<std::size_t>(peer)];
  converse({{socket, peer, std::as_bytes(std::span(&size, 1)), {}}}, Timeout(timeout_s_));
  converse({{socket, peer, std::as_bytes(std::span(text)), {}}}, Timeout(timeout_s_));
}

std::string Ranks::receive(int peer) {
  constexpr std::uint32_t most = 1U << 20;
  std::uint32_t size = 0;
  const Socket& socket = sockets_[static_cast<std::size_t>(peer)];
  converse({{socket, peer, {}, std::as_writable_bytes(std::span(&size, 1))}}, Timeout(timeout_s_));
  if (size > most) throw MachineError(fmt::format("rank {} announced {} bytes", peer, size));
  std::string text(size, '\0');
  converse({{socket, peer, {}, std::as_writable_bytes(std::span(text))}}, Timeout(timeout_s_));
  return text;
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
