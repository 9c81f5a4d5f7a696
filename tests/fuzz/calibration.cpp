// Does any calibration file make its reader crash, or refuse without a place?  libFuzzer: what is accepted must read back as it
// was written.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "planner/base/check.hpp"
#include "planner/spec/read_calibration.hpp"
#include "planner/spec/write_calibration.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace plimsoll;
  const auto read = [](const char* name, std::string text) {
    const auto document = parse_document(std::make_shared<SourceFile>(SourceFile{name, std::move(text)}));
    return document ? read_calibration(*document, "fuzzed") : Result<Calibration>(document.diagnostics());
  };
  const auto calibration = read("fuzzed.json", std::string(reinterpret_cast<const char*>(data), size));
  for (const Diagnostic& diagnostic : calibration.diagnostics()) {
    CHECK(!diagnostic.message.empty() && diagnostic.place.line > 0, "a diagnostic has a message and a place");
    (void)format(diagnostic);
  }
  if (!calibration) return 0;
  const std::string written = calibration_text(*calibration);
  const auto again = read("written.json", written);
  CHECK(again && calibration_text(*again) == written, "a calibration reads back as it was written");
  return 0;
}
