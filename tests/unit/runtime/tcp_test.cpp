// Do processes find each other over TCP, move messages larger than any buffer between them, and say who is gone?  Ranks are
// threads here; nothing but the sockets joins them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "planner/base/machine_error.hpp"
#include "planner/ranks/socket.hpp"
#include "runtime/tcp/tcp_world.hpp"

namespace plimsoll {
namespace {

using testing::HasSubstr;

RankNames names_of(int rank, int world) {
  RankNames names;
  names.rank = rank;
  names.world = world;
  names.port = 20000 + static_cast<int>(getpid() % 20000);
  names.launcher = "this test";
  return names;
}

/// What each of `world` ranks ends with: "" or what it threw.
std::vector<std::string> run_ranks(int world, double timeout_s, const std::function<void(Transport&)>& work) {
  std::vector<std::string> ends(static_cast<std::size_t>(world));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        work(*connect_by_tcp(names_of(rank, world), std::chrono::duration<double>(timeout_s)));
      } catch (const MachineError& error) {
        ends[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return ends;
}

/// `sizes(from, to)` bytes from every rank to every other, each byte telling who sent it to whom.
void exchange_all(Transport& transport, const std::function<std::size_t(int, int)>& sizes) {
  const Members all = members_of(transport.rank(), transport.world(), 1);
  std::vector<std::vector<std::byte>> out, in;
  for (int peer = 0; peer < transport.world(); ++peer) {
    out.emplace_back(sizes(transport.rank(), peer), static_cast<std::byte>(16 * transport.rank() + peer));
    in.emplace_back(sizes(peer, transport.rank()));
  }
  transport.exchange(all, {out.begin(), out.end()}, {in.begin(), in.end()});
  for (int peer = 0; peer < transport.world(); ++peer) {
    if (peer == transport.rank()) continue;
    for (const std::byte value : in[static_cast<std::size_t>(peer)])
      ASSERT_EQ(value, static_cast<std::byte>(16 * peer + transport.rank()));
  }
}

TEST(Tcp, MovesUnevenMessagesLargerThanAnyBuffer) {
  const auto ends = run_ranks(4, 30, [](Transport& transport) {
    for (int i = 0; i < 3; ++i) {
      exchange_all(transport, [](int from, int to) { return static_cast<std::size_t>((from + 2 * to) << 19); });
      barrier(transport);
    }
    EXPECT_FALSE(transport.is_abandoned());
    barrier(transport);
  });
  EXPECT_THAT(ends, testing::Each(""));
}

TEST(Tcp, NamesTheRankThatIsGone) {
  const auto ends = run_ranks(3, 30, [](Transport& transport) {
    barrier(transport);
    if (transport.rank() == 1) return;
    try {
      barrier(transport);
    } catch (const MachineError&) {
      transport.abandon();  // as a rank does that cannot go on: the others see rank 1's end before its own
      throw;
    }
  });
  EXPECT_THAT(ends[0], HasSubstr("rank 1 ended"));
  EXPECT_THAT(ends[2], HasSubstr("rank 1 ended"));
}

TEST(Tcp, NamesTheRankThatSaysNothing) {
  const auto ends = run_ranks(2, 1, [](Transport& transport) {
    if (transport.rank() == 0) return barrier(transport);
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  });
  EXPECT_EQ(ends[0], "waited 1 s for rank 1");
}

TEST(Tcp, SeesThatARankHasGivenUp) {
  const auto ends = run_ranks(2, 30, [](Transport& transport) {
    if (transport.rank() == 1) return transport.abandon();
    while (!transport.is_abandoned()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  EXPECT_THAT(ends, testing::Each(""));
}

TEST(Tcp, NamesRanksThatDoNotSpeakOfTheSameThing) {
  const auto ends = run_ranks(2, 30, [](Transport& transport) {
    exchange_all(transport, [&](int, int) { return static_cast<std::size_t>(8 + transport.rank()); });
  });
  EXPECT_THAT(ends[0], HasSubstr("rank 1 sent 9 bytes where 8 were due"));
}

TEST(Tcp, TurnsStrangersAway) {
  const RankNames first = names_of(0, 2);
  const auto timeout = std::chrono::seconds(30);
  std::thread rank([&] { EXPECT_NO_THROW(barrier(*connect_by_tcp(first, timeout))); });
  {
    const std::string request = "GET / HTTP/1.1";
    const Socket stranger = connect_to("127.0.0.1", static_cast<std::uint16_t>(first.port), Timeout(20));
    ASSERT_EQ(write(stranger.handle(), request.data(), request.size()), static_cast<ssize_t>(request.size()));
  }
  EXPECT_NO_THROW(barrier(*connect_by_tcp(names_of(1, 2), timeout)));
  rank.join();
}

}  // namespace
}  // namespace plimsoll
