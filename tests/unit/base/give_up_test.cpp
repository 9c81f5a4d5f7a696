// Does a computation end when nobody wants it any more, and only then?
#include "planner/base/give_up.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace plimsoll {
namespace {

TEST(GiveUp, EndsWhatIsUnwantedOnItsOwnThreadAlone) {
  EXPECT_NO_THROW(give_up_if_unwanted());
  std::stop_source outer, inner;
  {
    const std::stop_token outer_token = outer.get_token(), inner_token = inner.get_token();
    const Wanted whole(outer_token);
    EXPECT_NO_THROW(give_up_if_unwanted());
    {
      const Wanted part(inner_token);
      inner.request_stop();
      EXPECT_THROW(give_up_if_unwanted(), GivenUp);
    }
    EXPECT_NO_THROW(give_up_if_unwanted());
    outer.request_stop();
    EXPECT_THROW(give_up_if_unwanted(), GivenUp);
    std::jthread([] { EXPECT_NO_THROW(give_up_if_unwanted()); });
  }
  EXPECT_NO_THROW(give_up_if_unwanted());
}

}  // namespace
}  // namespace plimsoll
