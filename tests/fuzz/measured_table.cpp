// Does any text make the readers of measured tables crash, or vanish without a word?
#include "planner/cli/measured_table.hpp"

#include <cstdint>

#include "planner/base/check.hpp"
#include "planner/spec/document.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace plimsoll;
  for (const char* name : {"fuzz.json", "fuzz.csv"}) {
    auto file = std::make_shared<SourceFile>();
    file->name = name;
    file->text.assign(reinterpret_cast<const char*>(data), size);
    const MeasuredTable table = read_measured_table(file);
    CHECK(!table.rows.empty() || !table.diagnostics.empty() || name[5] == 'j', "rows are read or told");
    for (const Diagnostic& diagnostic : table.diagnostics) (void)format(diagnostic);
  }
  return 0;
}
