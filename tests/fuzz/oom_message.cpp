// Does any text make the reader of out-of-memory messages crash, or give a size that is none?
#include "planner/cli/oom_message.hpp"

#include <cmath>
#include <cstdint>

#include "planner/base/check.hpp"
#include "planner/spec/document.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace plimsoll;
  auto file = std::make_shared<SourceFile>();
  file->name = "fuzz";
  file->text.assign(reinterpret_cast<const char*>(data), size);
  const auto message = read_oom_message(file);
  if (!message) {
    CHECK(has_errors(message.diagnostics()), "a refusal has a reason");
    return 0;
  }
  CHECK(message->requested.bytes >= 1 && std::isfinite(message->requested.bytes), "a size is a size");
  return 0;
}
