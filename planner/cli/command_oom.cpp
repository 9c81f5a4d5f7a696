// plimsoll oom: which tensor does this out-of-memory message name, and what is the least that helps?
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>

#include "planner/base/format.hpp"
#include "planner/cli/commands.hpp"
#include "planner/cli/common_inputs.hpp"
#include "planner/cli/evaluate.hpp"
#include "planner/cli/in_words.hpp"
#include "planner/cli/json_output.hpp"
#include "planner/cli/oom_decode.hpp"
#include "planner/cli/remedy.hpp"
#include "planner/cli/table.hpp"
#include "planner/cli/terminal.hpp"
#include "planner/spec/document.hpp"

namespace plimsoll {
namespace {

struct OomOptions {
  InputOptions inputs;
  std::string message;
  std::string parameters;
};

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

/// A file, if it names one; "-": standard input; else the message itself.
std::shared_ptr<const SourceFile> text_of(const std::string& argument) {
  std::error_code error;
  if (argument == "-") return load_source("/dev/stdin");
  const bool one_word = argument.find_first_of(" \t\n") == std::string::npos;
  const bool must_be_file = one_word && (ends_with(argument, ".txt") || ends_with(argument, ".log") ||
                                         argument.find('/') != std::string::npos);
  const bool is_there = std::filesystem::exists(std::filesystem::symlink_status(argument, error));
  if (must_be_file || (one_word && is_there)) return load_source(argument);
  auto file = std::make_shared<SourceFile>();
  file->name = "the message";
  file->text = argument;
  return file;
}

/// An input that cannot be what was meant; all else (a config that lacks keys, a plan that no engine here builds) leaves
/// sizes that can be used.
bool is_unusable(const Diagnostic& diagnostic) {
  if (diagnostic.severity != Severity::error) return false;
  const std::string& code = diagnostic.code;
  static constexpr std::array<std::string_view, 4> families = {"json.", "cli.", "cluster.", "calibration."};
  static constexpr std::array<std::string_view, 7> kinds = {".type",   ".range", ".unit",  ".unknown",
                                                            ".preset", ".set",   ".choice"};
  return std::any_of(families.begin(), families.end(),
                     [&](std::string_view family) { return code.rfind(family, 0) == 0; }) ||
         std::any_of(kinds.begin(), kinds.end(), [&](std::string_view kind) { return ends_with(code, kind); });
}

/// Errors that end the command stay errors; the others are told as warnings, and what a config of single keys lacks not at
/// all.
Diagnostics judged(const Diagnostics& diagnostics) {
  Diagnostics all;
  const bool in_part = std::any_of(diagnostics.begin(), diagnostics.end(),
                                   [](const Diagnostic& diagnostic) { return diagnostic.code == "model.missing"; });
  for (Diagnostic diagnostic : diagnostics) {
    if (diagnostic.severity == Severity::note) continue;
    if (in_part && (diagnostic.code == "model.missing" || diagnostic.code == "model.family")) continue;
    if (!is_unusable(diagnostic)) diagnostic.severity = Severity::warning;
    all.push_back(std::move(diagnostic));
  }
  return all;
}

void print_message(const OomMessage& message) {
  std::string parts;
  const auto part = [&](const char* name, const std::optional<PrintedSize>& size) {
    if (size) parts += fmt::format("{}{} {}", parts.empty() ? "; " : ", ", size->text, name);
  };
  part("capacity", message.capacity);
  part("allocated", message.allocated);
  part("reserved", message.reserved);
  part("reserved but unused", message.reserved_unused);
  part("free", message.free);
  print(fmt::format("Asked for {}{}{}\n", message.requested.text, message.on_host ? " of host memory" : "", parts));
  const bool fragmented = message.reserved_unused && message.reserved_unused->bytes >= message.requested.bytes;
  if (fragmented)
    print(
        "More than that is reserved and unused: the pool is fragmented, and expandable_segments=true may be enough.\n");
}

/// What of the inputs was not given, with which more sizes are known; empty: nothing.
std::string advice_of(const Inputs& inputs) {
  if (inputs.model() && inputs.cluster()) return {};
  if (inputs.model()) return " With --cluster and --plan more are known.";
  return " With --model, --cluster and --plan, or --parameters and --gpus, more are known.";
}

void print_candidates(const std::vector<OomCandidate>& candidates, const Inputs& inputs) {
  if (candidates.empty()) {
    print(fmt::format("No tensor of the step has this size.{}\n", advice_of(inputs)));
    return;
  }
  print("\n");
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const OomCandidate& candidate = candidates[i];
    print(fmt::format("{:>2}. {}\n    {} = {} ({:+.2f} %)\n", i + 1, paint(candidate.tensor, Colour::bold),
                      candidate.formula, format(candidate.bytes), 100 * candidate.relative_error));
    for (const std::string& buffer : candidate.in_program) print(fmt::format("    in the program: {}\n", buffer));
    std::string assumed;
    for (const std::string& one : candidate.assumed) assumed += (assumed.empty() ? "" : ", ") + one;
    if (!assumed.empty()) print(fmt::format("    assumed: {}\n", assumed));
    print(fmt::format("    remedy: {}\n", candidate.remedy));
  }
}

int decode_message(const OomOptions& options) {
  const bool json = options.inputs.json;
  const auto message = read_oom_message(text_of(options.message));
  if (!message) return refuse(message.diagnostics(), json);
  const Inputs inputs(options.inputs);
  const Diagnostics diagnostics = judged(inputs.diagnostics());
  if (has_errors(diagnostics)) return refuse(diagnostics, json);
  const auto sizes = known_sizes(inputs, options.parameters);
  if (!sizes) return refuse(sizes.diagnostics(), json);
  print_diagnostics(diagnostics);
  std::optional<Evaluation> evaluation;
  std::optional<SmallestChange> change;
  if (inputs.model() && inputs.cluster() && !has_errors(inputs.diagnostics())) {
    evaluation = evaluate(inputs.scenario(), inputs.rank(), false);
    if (evaluation->ledger.verdict != Verdict::fits) change = smallest_change(inputs, *evaluation);
  }
  const std::vector<OomCandidate> candidates =
      decode(*message, *sizes, evaluation ? &evaluation->rank_program() : nullptr);
  if (json) {
    print(oom_json(*message, candidates, change));
    return exit_code::ok;
  }
  print_message(*message);
  print_candidates(candidates, inputs);
  if (evaluation) {
    const Ledger& ledger = evaluation->ledger;
    print(fmt::format("\nThe ledger: {}, {} of {} on the device\n", name_of(ledger.verdict),
                      format(ledger.job_device_peak.value), format(ledger.capacity)));
  }
  if (change) print(change_in_words(inputs, evaluation->ledger, *change));
  return exit_code::ok;
}

}  // namespace

std::function<int()> declare_oom(CLI::App& app) {
  auto options = std::make_shared<OomOptions>();
  app.add_option("MESSAGE", options->message, "the message, a file that holds it (a log, a traceback), or - to read it")
      ->required();
  add_common_inputs(app, options->inputs, {.scenario = false, .rank = true});
  app.add_option("--parameters", options->parameters,
                 "of the model, where there is no config.json: 13897000000 or 13.9B")
      ->group("Inputs")
      ->type_name("N");
  return [options] { return decode_message(*options); };
}

}  // namespace plimsoll
