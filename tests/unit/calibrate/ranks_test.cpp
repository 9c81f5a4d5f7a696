// Do processes find each other, and does a dead or silent one end the others by name?
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "calibrate/bench/ranks.hpp"
#include "planner/base/machine_error.hpp"

namespace plimsoll::calibrate {
namespace {

int free_port() { return 20000 + static_cast<int>(getpid() % 20000); }

RankNames two(int rank, int port) {
  RankNames names;
  names.rank = rank;
  names.world = 2;
  names.port = port;
  return names;
}

/// Runs rank 1 in a child that ends with what `work` returns.
pid_t fork_rank(int port, double timeout_s, int (*work)(Ranks&)) {
  const pid_t child = fork();
  if (child == 0) {
    int code = 9;
    try {
      Ranks ranks(two(1, port), timeout_s);
      code = work(ranks);
    } catch (const MachineError&) {
      code = 3;
    }
    _exit(code);
  }
  return child;
}

int code_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Ranks, BroadcastGatherAndMaximum) {
  const int port = free_port();
  const pid_t child = fork_rank(port, 20, [](Ranks& ranks) {
    const bool good = ranks.broadcast("") == "hello" && ranks.maximum(7) == 7 && !ranks.all(true);
    ranks.gather("from one");
    return good ? 0 : 1;
  });
  Ranks ranks(two(0, port), 20);
  EXPECT_EQ(ranks.broadcast("hello"), "hello");
  EXPECT_EQ(ranks.maximum(3), 7);
  EXPECT_FALSE(ranks.all(false));
  EXPECT_THAT(ranks.gather("zero"), testing::ElementsAre("zero", "from one"));
  EXPECT_EQ(code_of(child), 0);
}

TEST(Ranks, OneThatEndsIsNamed) {
  const int port = free_port() + 1;
  const pid_t child = fork_rank(port, 20, [](Ranks&) { return 0; });
  Ranks ranks(two(0, port), 20);
  EXPECT_EQ(code_of(child), 0);
  try {
    ranks.gather("");
    FAIL() << "rank 1 is gone";
  } catch (const MachineError& error) {
    EXPECT_STREQ(error.what(), "rank 1 ended");
  }
}

TEST(Ranks, OneThatIsSilentIsNamedWithinTheTimeout) {
  const int port = free_port() + 2;
  const pid_t child = fork_rank(port, 20, [](Ranks&) {
    std::this_thread::sleep_for(std::chrono::seconds(3));
    return 0;
  });
  Ranks ranks(two(0, port), 1);
  const auto start = std::chrono::steady_clock::now();
  try {
    ranks.gather("");
    FAIL() << "rank 1 says nothing";
  } catch (const MachineError& error) {
    EXPECT_STREQ(error.what(), "waited 1 s for rank 1");
  }
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 2.5);
  code_of(child);
}

TEST(Ranks, ThoseThatNeverComeAreNamed) {
  try {
    Ranks ranks(two(0, free_port() + 3), 0.3);
    FAIL();
  } catch (const MachineError& error) {
    EXPECT_STREQ(error.what(), "of 2 ranks that none started these did not come within 0.3 s: 1");
  }
}

TEST(Ranks, AHangingPointEndsTheProcess) {
  // The watchdog must end a process whose main thread hangs in a library.
  EXPECT_EXIT(
      {
        Ranks ranks(RankNames{}, 0.3);
        ranks.watch("collective/op=all_gather");
        std::this_thread::sleep_for(std::chrono::seconds(20));
      },
      testing::ExitedWithCode(3), "took more than 0.3 s over collective/op=all_gather");
}

}  // namespace
}  // namespace plimsoll::calibrate
