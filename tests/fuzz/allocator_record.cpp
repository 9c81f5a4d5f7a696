// Does any text make the readers of traces and snapshots crash, or give a record without events?
#include "planner/cli/allocator_record.hpp"

#include <cstdint>

#include "planner/base/check.hpp"
#include "planner/spec/document.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace plimsoll;
  auto file = std::make_shared<SourceFile>();
  file->name = "fuzz";
  file->text.assign(reinterpret_cast<const char*>(data), size);
  for (const auto& record : {read_allocator_trace(file), read_snapshot(file)}) {
    CHECK(record || has_errors(record.diagnostics()), "a refusal has a reason");
    CHECK(!record || !record->events.empty(), "a record has events");
  }
  return 0;
}
