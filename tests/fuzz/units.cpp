// Does any text make the readers of sizes, times and rates, or the search for the nearest word, misbehave?
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "planner/base/check.hpp"
#include "planner/base/format.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (const auto bytes = plimsoll::parse_bytes(text)) {
    CHECK(bytes->count >= 0, "a size is not negative");
    plimsoll::format(*bytes);
  }
  if (const auto time = plimsoll::parse_seconds(text)) CHECK(std::isfinite(time->count), plimsoll::format(*time));
  if (const auto rate = plimsoll::parse_bytes_per_second(text))
    CHECK(std::isfinite(rate->count), plimsoll::format(*rate));
  plimsoll::nearest(text, {"stage", "micro_batch", "gradient_accumulation_steps"});
  return 0;
}
