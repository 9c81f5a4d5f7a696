// Are sizes, times and rates written and read as planner/base/format.hpp promises?  Expected values are worked out by hand.
#include "planner/base/format.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "planner/base/nearest.hpp"

namespace plimsoll {
namespace {

constexpr std::int64_t ki = 1024;
constexpr std::int64_t mi = 1024 * ki;
constexpr std::int64_t gi = 1024 * mi;

TEST(Counted, OneIsSingular) {
  EXPECT_EQ(counted(1, "GPU"), "1 GPU");
  EXPECT_EQ(counted(0, "GPU"), "0 GPUs");
  EXPECT_EQ(counted(1024, "GPU"), "1,024 GPUs");
}

TEST(ParseCount, ReadsWhatAPersonWrites) {
  for (const auto& [text, number] :
       {std::pair{"15T", 15e12}, std::pair{"13.9B", 13.9e9}, std::pair{"300 b", 300e9}, std::pair{"2G", 2e9},
        std::pair{"7M", 7e6}, std::pair{"8k", 8e3}, std::pair{"1e12", 1e12}, std::pair{"13,897,000,000", 13897e6},
        std::pair{"1_000", 1e3}, std::pair{"13 897 000", 13897e3}, std::pair{"1,000.5k", 1000.5e3},
        std::pair{".5B", 5e8}, std::pair{"0", 0.0}})
    EXPECT_DOUBLE_EQ(parse_count(text).value_or(-1), number) << text;
  for (const char* text :
       {"",     "T",    "-1",     "nan",  "inf",    "15TT",      "1e999",    "15 trillion", "0x10", "1.2.3", "15T x",
        ",15T", "15,T", "1,,000", "15,0", "1,0000", "1,000_000", "1,234567", "1.5,000",     "1 5T", "_1"})
    EXPECT_FALSE(parse_count(text)) << text;
}

TEST(FormatBytes, ShowsThreeDigitsInBinaryUnits) {
  EXPECT_EQ(format(Bytes(0)), "0 B");
  EXPECT_EQ(format(Bytes(1)), "1 B");
  EXPECT_EQ(format(Bytes(1023)), "1023 B");
  EXPECT_EQ(format(Bytes(1024)), "1.00 KiB");
  EXPECT_EQ(format(Bytes(1536)), "1.50 KiB");
  EXPECT_EQ(format(Bytes(85'143'977'165)),
            "79.3 GiB");  // 79.3 · 2^30 = 85,147,726,643; 85,143,977,165 / 2^30 = 79.2965
  EXPECT_EQ(format(Bytes(150'109'880'320)), "140 GiB");  // an H200: 139.80 GiB
  EXPECT_EQ(format(Bytes(112'000'000'000)), "104 GiB");  // 104.31
  EXPECT_EQ(format(Bytes(80 * gi)), "80.0 GiB");
  EXPECT_EQ(format(Bytes(2 * 1024 * gi)), "2.00 TiB");
}

TEST(FormatBytes, MovesToTheNextUnitWhenTheRoundedNumberReachesIt) {
  EXPECT_EQ(format(Bytes(1000 * mi)), "1000 MiB");
  EXPECT_EQ(format(Bytes(1023 * mi)), "1023 MiB");
  EXPECT_EQ(format(Bytes(1024 * mi - 1)), "1.00 GiB");
  EXPECT_EQ(format(Bytes(1023 * mi + 512 * ki - 1)), "1023 MiB");
  EXPECT_EQ(format(Bytes(1023 * mi + 512 * ki)), "1.00 GiB");
  EXPECT_EQ(format(Bytes(10 * ki - 1)), "10.0 KiB");  // 9.999 is not shown as 10.00
  EXPECT_EQ(format(Bytes(100 * ki - 1)), "100 KiB");  // 99.999 is not shown as 100.0
  EXPECT_EQ(format(Bytes(10'229)), "9.99 KiB");       // 9.98926
}

TEST(FormatBytes, ShowsNegativeMarginsAndTheExtremes) {
  EXPECT_EQ(format(Bytes(-1536)), "-1.50 KiB");
  EXPECT_EQ(format(Bytes(-5)), "-5 B");
  EXPECT_EQ(format(Bytes(std::numeric_limits<std::int64_t>::max())), "8.00 EiB");
  EXPECT_EQ(format(Bytes(std::numeric_limits<std::int64_t>::min())), "-8.00 EiB");
}

TEST(FormatSeconds, PicksTheUnitFromPicosecondsToDays) {
  EXPECT_EQ(format(Seconds(0)), "0 s");
  EXPECT_EQ(format(Seconds(0.00321)), "3.21 ms");
  EXPECT_EQ(format(Seconds(25e-6)), "25.0 us");
  EXPECT_EQ(format(Seconds(7e-9)), "7.00 ns");
  EXPECT_EQ(format(Seconds(5e-12)), "5.00 ps");
  EXPECT_EQ(format(Seconds(1.5)), "1.50 s");
  EXPECT_EQ(format(Seconds(0.9999)), "1.00 s");
  EXPECT_EQ(format(Seconds(90)), "90.0 s");
  EXPECT_EQ(format(Seconds(600)), "10.0 min");
  EXPECT_EQ(format(Seconds(9000)), "2.50 h");
  EXPECT_EQ(format(Seconds(86400 * 12.5)), "12.5 d");
  EXPECT_EQ(format(Seconds(-0.002)), "-2.00 ms");
}

TEST(FormatRate, IsDecimal) {
  EXPECT_EQ(format(BytesPerSecond(360e9)), "360 GB/s");
  EXPECT_EQ(format(BytesPerSecond(4.8e12)), "4.80 TB/s");
  EXPECT_EQ(format(BytesPerSecond(50e9)), "50.0 GB/s");
  EXPECT_EQ(format(BytesPerSecond(999.6e6)), "1.00 GB/s");
  EXPECT_EQ(format(BytesPerSecond(0)), "0 B/s");
}

TEST(FormatFlops, IsDecimal) {
  EXPECT_EQ(format(Flops(2.5e15)), "2.50 PFLOP");
  EXPECT_EQ(format(Flops(989e12)), "989 TFLOP");
  EXPECT_EQ(format(Flops(0)), "0 FLOP");
  EXPECT_EQ(format(Flops(3.1e24)), "3.10 YFLOP");
}

TEST(FormatCount, GroupsDigitsByThree) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1,000");
  EXPECT_EQ(format_count(123456), "123,456");
  EXPECT_EQ(format_count(46'702'792'704), "46,702,792,704");
  EXPECT_EQ(format_count(-999), "-999");
  EXPECT_EQ(format_count(-1000), "-1,000");
  EXPECT_EQ(format_count(-123456), "-123,456");
  EXPECT_EQ(format_count(std::numeric_limits<std::int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(ParseBytes, TellsDecimalFromBinaryUnits) {
  EXPECT_EQ(parse_bytes("80 GiB"), Bytes(80 * gi));
  EXPECT_EQ(parse_bytes("80 GB"), Bytes(80'000'000'000));
  EXPECT_EQ(parse_bytes("1.5 TB"), Bytes(1'500'000'000'000));
  EXPECT_EQ(parse_bytes("0 B"), Bytes(0));
  EXPECT_EQ(parse_bytes("512 KiB"), Bytes(512 * ki));
  EXPECT_EQ(parse_bytes("3 kB"), Bytes(3000));
  EXPECT_EQ(parse_bytes("3 KB"), Bytes(3000));
  EXPECT_EQ(parse_bytes("2 PB"), Bytes(2'000'000'000'000'000));
  EXPECT_EQ(parse_bytes("1 EiB"), Bytes(gi * gi));
  EXPECT_EQ(parse_bytes("141e9 B"), Bytes(141'000'000'000));
}

TEST(ParseBytes, IsLenientAboutBlanksOnly) {
  EXPECT_EQ(parse_bytes("80GiB"), Bytes(80 * gi));
  EXPECT_EQ(parse_bytes("  80   GiB "), Bytes(80 * gi));
  EXPECT_EQ(parse_bytes("80\tGiB"), Bytes(80 * gi));
}

TEST(ParseBytes, IsExactToTheByte) {
  EXPECT_EQ(parse_bytes("9007199254740993 B"), Bytes(9'007'199'254'740'993));  // 2^53 + 1, which a double cannot hold
  EXPECT_EQ(parse_bytes("9223372036854775807 B"), Bytes(std::numeric_limits<std::int64_t>::max()));
  EXPECT_EQ(parse_bytes("0.1 GiB"), Bytes(107'374'182));  // 107,374,182.4
  EXPECT_EQ(parse_bytes("1.1 GB"), Bytes(1'100'000'000));
}

TEST(ParseBytes, RefusesWhatHasNoUnitOrNoSense) {
  for (const char* text : {"",        " ",       "80",       "80 ",   "GiB",   "80 G",    "80 Gi",  "80 gib",
                           "80 GIB",  "80 Gb",   "80 bytes", "-1 GB", "+1 GB", "inf GB",  "nan GB", "1,000 GB",
                           "0x10 GB", "8 GB GB", "80 GiBx",  "80 XB", "80 iB", "80 GiiB", ".5 GB"}) {
    EXPECT_EQ(parse_bytes(text), std::nullopt) << '"' << text << '"';
  }
}

TEST(ParseBytes, RefusesWhatDoesNotFitIn63Bits) {
  EXPECT_EQ(parse_bytes("9223372036854775808 B"), std::nullopt);
  EXPECT_EQ(parse_bytes("8 EiB"), std::nullopt);
  EXPECT_EQ(parse_bytes("1e30 B"), std::nullopt);
  EXPECT_EQ(parse_bytes("1e999999 B"), std::nullopt);
  EXPECT_EQ(parse_bytes("7.5 EiB"), Bytes(15 * (gi * gi / 2)));
}

TEST(ParseSeconds, KnowsUnitsFromPicosecondsToDays) {
  EXPECT_DOUBLE_EQ(parse_seconds("25 us")->count, 25e-6);
  EXPECT_DOUBLE_EQ(parse_seconds("25 µs")->count, 25e-6);
  EXPECT_DOUBLE_EQ(parse_seconds("1.2 s")->count, 1.2);
  EXPECT_DOUBLE_EQ(parse_seconds("3ms")->count, 3e-3);
  EXPECT_DOUBLE_EQ(parse_seconds("700 ns")->count, 700e-9);
  EXPECT_DOUBLE_EQ(parse_seconds("2 min")->count, 120);
  EXPECT_DOUBLE_EQ(parse_seconds("1.5 h")->count, 5400);
  EXPECT_DOUBLE_EQ(parse_seconds("2 d")->count, 172800);
  EXPECT_DOUBLE_EQ(parse_seconds("0 s")->count, 0);
  for (const char* text : {"", "25", "us", "25 usec", "-1 s", "1 S", "1e5000 s", "inf s", "2 m"}) {
    EXPECT_EQ(parse_seconds(text), std::nullopt) << '"' << text << '"';
  }
}

TEST(ParseRate, TellsBitsFromBytes) {
  EXPECT_DOUBLE_EQ(parse_bytes_per_second("400 GB/s")->count, 400e9);
  EXPECT_DOUBLE_EQ(parse_bytes_per_second("400 Gb/s")->count, 50e9);
  EXPECT_DOUBLE_EQ(parse_bytes_per_second("400 Gbit/s")->count, 50e9);
  EXPECT_DOUBLE_EQ(parse_bytes_per_second("400Gbps")->count, 50e9);
  EXPECT_DOUBLE_EQ(parse_bytes_per_second("1 GiB/s")->count, 1073741824.0);
  EXPECT_DOUBLE_EQ(parse_bytes_per_second("3.35 TB/s")->count, 3.35e12);
  EXPECT_DOUBLE_EQ(parse_bytes_per_second("8 b/s")->count, 1);
  for (const char* text : {"", "400", "400 GB", "GB/s", "400 GB/h", "400 gb/s", "400 GBps", "-1 GB/s", "1e5000 GB/s"}) {
    EXPECT_EQ(parse_bytes_per_second(text), std::nullopt) << '"' << text << '"';
  }
}

TEST(FormatAndParse, AgreeOnWholeUnits) {
  for (const std::int64_t bytes : {ki, 3 * mi, 80 * gi, 512 * mi, 2048 * gi}) {
    EXPECT_EQ(parse_bytes(format(Bytes(bytes))), Bytes(bytes));
  }
}

TEST(Nearest, FindsASlipOfThePen) {
  const std::vector<std::string> keys{"stage", "sequence", "micro_batch", "expert_parallel", "tensor_parallel"};
  EXPECT_EQ(nearest("stgae", keys), "stage");  // one swap
  EXPECT_EQ(nearest("sequnce", keys), "sequence");
  EXPECT_EQ(nearest("microbatch", keys), "micro_batch");
  EXPECT_EQ(nearest("Micro-Batch", keys), "micro_batch");  // case and - against _ are free
  EXPECT_EQ(nearest("expert_paralel", keys), "expert_parallel");
  EXPECT_EQ(nearest("stage", keys), "stage");
}

TEST(Nearest, PrefersTheSmallerDistanceThenTheEarlierCandidate) {
  EXPECT_EQ(nearest("cats", {"bats", "cat", "cats"}), "cats");
  EXPECT_EQ(nearest("hat", {"cat", "bat"}), "cat");
}

TEST(Nearest, IsSilentWhenNothingIsNear) {
  EXPECT_EQ(nearest("quux", {"stage", "sequence"}), std::nullopt);
  EXPECT_EQ(nearest("", {"a", "stage"}), std::nullopt);
  EXPECT_EQ(nearest("stage", {}), std::nullopt);
  EXPECT_EQ(nearest("stage", {""}), std::nullopt);
  EXPECT_EQ(nearest("x", {"y"}), std::nullopt);  // one letter of one is all of it
  EXPECT_EQ(nearest("ep", {"dp"}), "dp");
  EXPECT_EQ(nearest(std::string(1'000'000, 'x'), {"stage"}), std::nullopt);
}

TEST(NearestParts, ComeByTheirDistanceNotByTheAlphabet) {
  const std::vector<std::string> ids{"amp-llama1b-mb1", "fsdp-llama1b-mb1", "z3-mixtral-mb2"};
  EXPECT_EQ(nearest_parts("fsdq", ids, 1), std::vector<std::string>{"fsdp-llama1b-mb1"});
  EXPECT_EQ(nearest_parts("mixtrla", ids, 2), (std::vector<std::string>{"z3-mixtral-mb2", "amp-llama1b-mb1"}));
  EXPECT_TRUE(nearest_parts("x", {}, 3).empty());
}

}  // namespace
}  // namespace plimsoll
