// Messages between all pairs of ranks (runtime/tcp/tcp_world.hpp).
#include "runtime/tcp/tcp_world.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <thread>

#include "planner/ranks/meeting.hpp"

namespace plimsoll {

namespace {

class TcpTransport final : public Transport {
 public:
  TcpTransport(RankNames names, Timeout timeout)
      : names_(std::move(names)), timeout_(timeout), peers_(connect_all(names_, timeout)) {}

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

  const RankNames names_;
  const Timeout timeout_;
  std::vector<Socket> peers_;  // by rank; none to itself
};

}  // namespace

std::unique_ptr<Transport> connect_by_tcp(const RankNames& names, std::chrono::duration<double> timeout) {
  return std::make_unique<TcpTransport>(names, timeout);
}

}  // namespace plimsoll
