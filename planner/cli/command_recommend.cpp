// plimsoll recommend: which plan should I use, and why?
#include <fmt/format.h>
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "planner/base/format.hpp"
#include "planner/cli/commands.hpp"
#include "planner/cli/interrupt.hpp"
#include "planner/cli/recommendation.hpp"
#include "planner/cli/terminal.hpp"
#include "planner/spec/limits.hpp"

namespace plimsoll {
namespace {

/// Step programs of some megabytes come and go by the hundred, on several threads: their memory stays with the process.
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  mallopt(M_TOP_PAD, 16 << 20);
}

/// What is wrong with a global batch that no plan of these GPUs makes: every rank runs whole micro-batches, so it is a
/// multiple of world size x (what is stated of micro-batch and accumulation).  Where the number of GPUs is open, of the
/// smallest that the search tries: an odd one is not halved.
std::optional<Diagnostic> indivisible(const Plan& asked, std::int64_t global_batch) {
  if (global_batch == 0) return std::nullopt;
  std::int64_t gpus = asked.world_size;
  if (!asked.states("/world_size"))
    while (gpus % 2 == 0) gpus /= 2;
  std::int64_t multiple = gpus;
  std::string of = counted(gpus, "GPU");
  if (asked.states("/micro_batch")) {
    multiple *= asked.micro_batch;
    of += fmt::format(" x micro-batch {}", asked.micro_batch);
  }
  if (asked.states("/gradient_accumulation")) {
    multiple *= asked.gradient_accumulation;
    of += fmt::format(" x {} accumulated", asked.gradient_accumulation);
  }
  if (global_batch % multiple == 0) return std::nullopt;
  const std::int64_t nearest = std::max<std::int64_t>(1, (global_batch + (multiple - 1) / 2) / multiple) * multiple;
  return make_error("cli.global_batch", fmt::format("--global-batch {} is no multiple of {}", global_batch, of),
                    fmt::format("the nearest that is: --global-batch {}", nearest));
}

int recommend(RecommendOptions options) {
  keep_freed_memory();
  const std::optional<Inputs> inputs = load_scenario(options.inputs);
  if (!inputs) return exit_code::input;
  if (const auto wrong = indivisible(asked_of(*inputs).plan, options.global_batch))
    return refuse({*wrong}, options.inputs.json);
  const auto calibration = inputs->prices();
  if (!calibration) return refuse(calibration.diagnostics(), options.inputs.json);
  print_diagnostics(calibration.diagnostics());
  if (!options.emit.empty()) check_emit_folder(options.emit);
  const Interrupt interrupt;
  options.stop = interrupt.stop();
  const Recommendation recommendation = recommend(*inputs, *calibration, options);
  print(options.inputs.json ? recommend_json(recommendation) : recommendation_text(recommendation, true));
  if (!recommendation.search.best) {
    finish_output();
    fmt::print(stderr, "plimsoll recommend: {}\n", nothing_fits(recommendation.search));
    return exit_code::no_plan;
  }
  if (options.emit.empty()) return exit_code::ok;
  emit_plan(recommendation, options.emit, options.inputs);
  fmt::print(stderr, "wrote {}: plan.json, {}launch.sh, report.md\n", options.emit,
             recommendation.search.best->plan.engine == Engine::deepspeed ? "ds_config.json, " : "");
  return exit_code::ok;
}

}  // namespace

std::function<int()> declare_recommend(CLI::App& app) {
  auto options = std::make_shared<RecommendOptions>();
  add_common_inputs(app, options->inputs);
  app.add_option(
         "--global-batch", options->global_batch,
         "sequences of one optimizer step over all GPUs; without it: those of a ds_config.json that states them, "
         "else most tokens/s")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30));
  app.add_option("--emit", options->emit, "write plan.json, ds_config.json, launch.sh and report.md")->type_name("DIR");
  app.add_option("--top", options->top, "how many plans to list")->check(CLI::Range(1, 100))->capture_default_str();
  app.add_option("--seconds", options->budget_s, "how long to search at most")
      ->check(number_from(0, 1e6))
      ->capture_default_str();
  app.add_flag("--tight", options->accept_tight, "let plans that fit only tightly compete");
  return [options] { return recommend(*options); };
}

}  // namespace plimsoll
