// Collectives between processes that no MPI started, over sockets between all pairs (calibrate/bench/host/host_collectives.hpp).
// Every rank sends each other one its part directly: what an all-gather, a reduce-scatter or an exchange moves at least.
#include <fmt/format.h>

#include <cstring>
#include <span>

#include "calibrate/bench/host/floats.hpp"
#include "calibrate/bench/host/host_collectives.hpp"
#include "calibrate/bench/ranks.hpp"
#include "planner/ranks/meeting.hpp"

namespace plimsoll::calibrate {
namespace {

class TcpCollectives : public HostCollectives {
 public:
  explicit TcpCollectives(Ranks& ranks)
      : rank_(static_cast<std::size_t>(ranks.rank())), timeout_(ranks.timeout_s()), peers_(meet(ranks)) {}

  std::function<void()> prepare(const Point& point) override {
    const std::string op = point.label("op");
    const std::size_t ranks = peers_.size();
    const std::size_t part = static_cast<std::size_t>(point.size("bytes")) / sizeof(float) / ranks;
    const auto send = std::make_shared<Floats>(part * ranks, 1.0F);
    const auto receive = std::make_shared<Floats>(part * ranks, 0.0F);
    if (op == "all_gather") return [=, this] { gather(*send, *receive, part); };
    if (op == "all_to_all") return [=, this] { exchange(*send, *receive, part); };
    if (op != "reduce_scatter" && op != "all_reduce")
      throw Unsupported(fmt::format("the host backend has no collective {}", op));
    return [=, this, both = op == "all_reduce"] {
      exchange(*send, *receive, part);
      float* const own = receive->data() + rank_ * part;
      for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
        const float* const from = receive->data() + peer * part;
        for (std::size_t i = 0; peer != rank_ && i < part; ++i) own[i] += from[i];
      }
      if (both) gather(*receive, *receive, part);
    };
  }

 private:
  /// Rank 0 has stopped listening for the star when all know of each other; then it listens again on the same port.
  static std::vector<Socket> meet(Ranks& ranks) {
    ranks.all(true);
    return connect_all(ranks.names(), Timeout(ranks.timeout_s()));
  }

  /// Part `rank` of `from` goes to everyone; theirs arrive in `to`.
  void gather(const Floats& from, Floats& to, std::size_t part) {
    move(from, to, part, [this](std::size_t) { return rank_; });
  }
  /// Part p of `from` goes to rank p.
  void exchange(const Floats& from, Floats& to, std::size_t part) {
    move(from, to, part, [](std::size_t peer) { return peer; });
  }

  template <class PartFor>
  void move(const Floats& from, Floats& to, std::size_t part, PartFor part_for) {
    std::vector<Dialogue> dialogues;
    for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
      const std::span<const float> out(from.data() + part_for(peer) * part, part);
      const std::span<float> in(to.data() + peer * part, part);
      if (peer != rank_) {
        dialogues.push_back({peers_[peer], static_cast<int>(peer), std::as_bytes(out), std::as_writable_bytes(in)});
      } else if (in.data() != out.data()) {
        std::memcpy(in.data(), out.data(), out.size_bytes());
      }
    }
    converse(dialogues, timeout_);
  }

  std::size_t rank_;
  Timeout timeout_;
  std::vector<Socket> peers_;  // by rank; none to itself
};

}  // namespace

std::unique_ptr<HostCollectives> make_tcp_collectives(Ranks& ranks) { return std::make_unique<TcpCollectives>(ranks); }

}  // namespace plimsoll::calibrate
