// Does Ctrl-C ask a search to stop, and only while it runs?
#include "planner/cli/interrupt.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>

namespace plimsoll {
namespace {

TEST(Interrupt, RequestsStopAndLeavesTheSignalAsItWas) {
  {
    const Interrupt interrupt;
    EXPECT_FALSE(interrupt.stop().stop_requested());
    std::mutex mutex;
    std::condition_variable_any told;
    kill(getpid(), SIGINT);
    std::unique_lock lock(mutex);
    told.wait(lock, interrupt.stop(), [] { return false; });
    EXPECT_TRUE(interrupt.stop().stop_requested());
  }
  sigset_t blocked;
  pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  EXPECT_EQ(sigismember(&blocked, SIGINT), 0);
}

TEST(InterruptDeathTest, EndsTheProgramTheSecondTime) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const Interrupt interrupt;
        kill(getpid(), SIGINT);
        while (!interrupt.stop().stop_requested()) usleep(1000);
        kill(getpid(), SIGINT);
        pause();
      },
      testing::KilledBySignal(SIGINT), "interrupted");
}

}  // namespace
}  // namespace plimsoll
