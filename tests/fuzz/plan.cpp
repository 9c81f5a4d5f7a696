// Does any plan.json or override make its reader, the legality rules or the writers misbehave?  libFuzzer: the first line
// is an override if it holds '=', the rest is the file; what is accepted must read back as it was written.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "planner/base/check.hpp"
#include "planner/spec/check_configuration.hpp"
#include "planner/spec/read_model.hpp"
#include "planner/spec/write_plan.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace plimsoll;
  static const Result<ModelSpec> model = load_model("mixtral-8x7b");
  std::string text(reinterpret_cast<const char*>(data), size);
  if (text.find("\"file\"") != std::string::npos) return 0;  // would open what the text names
  ConfigurationInput input;
  const std::size_t line = text.find('\n');
  if (line != std::string::npos && text.find('=') < line) {
    input.overrides.push_back(text.substr(0, line));
    text.erase(0, line + 1);
  }
  input.file = std::make_shared<SourceFile>(SourceFile{"fuzzed.json", text});
  input.model = &*model;
  const CheckReport report = check_configuration(input);
  for (const Diagnostic& diagnostic : report.diagnostics) {
    CHECK(!diagnostic.message.empty() && !diagnostic.code.empty(), "a diagnostic has a message and a code");
    CHECK(diagnostic.severity != Severity::error || diagnostic.place.line > 0, "an error has a place");
    (void)format(diagnostic);
  }
  if (!report.plan) return 0;
  const auto again = std::make_shared<SourceFile>(SourceFile{"written.json", write_plan_json(*report.plan)});
  const Result<Plan> plan = read_plan(again);
  CHECK(plan && same_settings(*plan, *report.plan), "a plan reads back as it was written");
  return 0;
}
