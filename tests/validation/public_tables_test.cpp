// Does the ledger agree with memory that others published?  tests/data/public_memory.json holds the rows of public tables
// whose run a plan can state, each figure with the error that it may have and why (docs/public_tables.md lists the rest).
//   allocated_peak, device_peak             over a steady step
//   PHASE.allocated_end, .allocated_peak    of that phase
// or the verdict that was seen.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <optional>

#include "planner/cli/common_inputs.hpp"
#include "planner/cli/evaluate.hpp"
#include "planner/spec/document.hpp"

namespace plimsoll {
namespace {

std::string text(const Node& node, const char* key) { return node.find(key)->as_string(); }

std::optional<Bytes> figure_of(const Ledger& ledger, const std::string& name) {
  if (name == "allocated_peak") return ledger.allocated_peak.value;
  if (name == "device_peak") return ledger.device_peak.value;
  for (const PhaseMemory& phase : ledger.replay.phases) {
    if (name == phase.name + ".allocated_end") return phase.allocated_end;
    if (name == phase.name + ".allocated_peak") return phase.allocated_peak;
  }
  return std::nullopt;
}

void compare(const std::string& id, const Node& figure, const Ledger& ledger) {
  const std::string name = text(figure, "figure");
  const std::optional<Bytes> predicted = figure_of(ledger, name);
  if (!predicted) {
    ADD_FAILURE() << id << ": no figure " << name;
    return;
  }
  const auto stated = static_cast<double>(figure.find("bytes")->as_int());
  const double error = 100 * (static_cast<double>(predicted->count) / stated - 1);
  const auto& allowed = figure.find("percent")->items();
  EXPECT_GE(error, allowed[0]->as_double()) << id << " " << name;
  EXPECT_LE(error, allowed[1]->as_double()) << id << " " << name;
}

TEST(PublicTables, MemoryAgreesWithWhatOthersMeasured) {
  const auto table = parse_document(load_source(PLIMSOLL_SOURCE_DIR "/tests/data/public_memory.json"));
  ASSERT_TRUE(table);
  for (const Node* row : table->root().find("rows")->items()) {
    const std::string id = text(*row, "id"), model = text(*row, "model");
    InputOptions options;
    options.model = model.rfind("tests/", 0) == 0 ? fmt::format("{}/{}", PLIMSOLL_SOURCE_DIR, model) : model;
    options.cluster = text(*row, "cluster");
    for (const Node* key : row->find("set")->items()) options.sets.push_back(key->as_string());
    const Inputs inputs(options);
    ASSERT_FALSE(has_errors(inputs.diagnostics())) << id << ": " << format(inputs.diagnostics().front());
    const Ledger ledger = evaluate(inputs.scenario(), {}, false).ledger;
    if (const Node* verdict = row->find("verdict")) {
      EXPECT_EQ(name_of(ledger.verdict), verdict->as_string()) << id;
    }
    if (const Node* figures = row->find("figures")) {
      for (const Node* figure : figures->items()) compare(id, *figure, ledger);
    }
  }
}

}  // namespace
}  // namespace plimsoll
