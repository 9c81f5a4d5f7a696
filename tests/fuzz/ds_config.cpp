// Does any ds_config.json make its reader, the linter or the legality rules misbehave?  libFuzzer.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "planner/base/check.hpp"
#include "planner/spec/check_configuration.hpp"
#include "planner/spec/read_ds_config.hpp"
#include "planner/spec/read_model.hpp"
#include "planner/spec/write_plan.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace plimsoll;
  static const Result<ModelSpec> model = load_model("mixtral-8x7b");
  ConfigurationInput input;
  input.file =
      std::make_shared<SourceFile>(SourceFile{"fuzzed.json", std::string(reinterpret_cast<const char*>(data), size)});
  input.is_ds_config = true;
  input.overrides = {"world_size=8", "sequence=2048"};
  input.model = &*model;
  const CheckReport report = check_configuration(input);
  for (const Diagnostic& diagnostic : report.diagnostics) {
    CHECK(!diagnostic.message.empty() && !diagnostic.code.empty(), "a diagnostic has a message and a code");
    CHECK(diagnostic.severity != Severity::error || diagnostic.place.line > 0, "an error has a place");
    (void)format(diagnostic);
  }
  if (!report.plan) return 0;
  PlanContext context;
  context.overrides = beside_ds_config(*report.plan);
  const auto again = std::make_shared<SourceFile>(SourceFile{"written.json", write_ds_config(*report.plan, &*model)});
  const Result<Plan> plan = read_ds_config(again, context);
  CHECK(plan && same_settings(*plan, *report.plan), "a configuration reads back as it was written");
  return 0;
}
