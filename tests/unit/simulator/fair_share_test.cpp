// Max-min fair rates of flows that share links, by hand.
#include <gtest/gtest.h>

#include "simulator/fair_share.hpp"

namespace plimsoll {
namespace {

constexpr auto nvlink = static_cast<std::size_t>(Tier::nvlink);
constexpr auto nic = static_cast<std::size_t>(Tier::nic);

Demand on(std::size_t tier, double share) {
  Demand demand{};
  demand[tier] = share;
  return demand;
}

template <std::size_t n>
std::array<double, n> rates_of(const std::array<Demand, n>& flows) {
  std::array<const Demand*, n> demands{};
  for (std::size_t i = 0; i < n; ++i) demands[i] = &flows[i];
  std::array<double, n> rates{};
  fair_rates(demands, rates);
  return rates;
}

TEST(FairShare, FlowsThatFitKeepTheirSpeed) {
  const auto rates = rates_of<2>({on(nvlink, 0.6), on(nvlink, 0.4)});
  EXPECT_DOUBLE_EQ(rates[0], 1);
  EXPECT_DOUBLE_EQ(rates[1], 1);
}

// Of a link of 1, the flow that asks for 0.1 has it; 0.9 is left for two that ask for 0.9 and 0.5: 0.45 each.
TEST(FairShare, ThreeFlowsOnOneLink) {
  const auto rates = rates_of<3>({on(nvlink, 0.9), on(nvlink, 0.5), on(nvlink, 0.1)});
  EXPECT_NEAR(rates[0], 0.45 / 0.9, 1e-12);
  EXPECT_NEAR(rates[1], 0.45 / 0.5, 1e-12);
  EXPECT_NEAR(rates[2], 1, 1e-12);
}

// Two ask for the whole NIC: half each.  The first also takes half of what it has on the NIC of NVLink, where a third flow
// asks for all and gets what that leaves, 0.75.
TEST(FairShare, AFlowOverTwoLinksIsHeldBackByTheFullerOne) {
  Demand both = on(nic, 1);
  both[nvlink] = 0.5;
  const auto rates = rates_of<3>({both, on(nic, 1), on(nvlink, 1)});
  EXPECT_NEAR(rates[0], 0.5, 1e-12);
  EXPECT_NEAR(rates[1], 0.5, 1e-12);
  EXPECT_NEAR(rates[2], 0.75, 1e-12);
}

TEST(FairShare, FlowsOfDifferentLinksDoNotMeet) {
  const auto rates = rates_of<2>({on(nvlink, 1), on(nic, 1)});
  EXPECT_DOUBLE_EQ(rates[0], 1);
  EXPECT_DOUBLE_EQ(rates[1], 1);
}

}  // namespace
}  // namespace plimsoll
