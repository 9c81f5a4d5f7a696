// Does any config.json or sketch make the reader of models crash, or answer without a reason?  libFuzzer.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "planner/base/check.hpp"
#include "planner/spec/read_model.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace plimsoll;
  auto file = std::make_shared<SourceFile>();
  file->name = "fuzzed.json";
  file->text.assign(reinterpret_cast<const char*>(data), size);
  if (const auto document = parse_document(file, Syntax::json)) {
    const auto model = read_model(*document, "fuzzed");
    for (const Diagnostic& diagnostic : model.diagnostics()) {
      CHECK(!diagnostic.message.empty() && diagnostic.place.line > 0, "a diagnostic has a message and a place");
      (void)format(diagnostic);
    }
    if (model) CHECK(count_parameters(*model).active <= count_parameters(*model).total, "active parameters are a part");
  }
  const auto sketch = read_sketch("sketch:" + file->text);
  if (sketch) CHECK(!sketch->parameters.empty(), "a sketch has parameters");
  return 0;
}
