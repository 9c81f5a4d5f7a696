// Lines of a run (runtime/cli/run_log.hpp).
#include "runtime/cli/run_log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "planner/base/format.hpp"

namespace plimsoll {

namespace {

using Json = nlohmann::ordered_json;

const ReportLayout& layout_of(const StepProgram& program) { return program.classes.front().program.report; }

double tokens_per_s(const StepLine& step, const StepProgram& program) {
  return static_cast<double>(program.tokens_per_step_per_rank) / step.time_s;
}

}  // namespace

ExpertLoad load_of(const StepReport& report, std::int64_t layers, std::int64_t experts) {
  ExpertLoad load;
  double entropy = 0;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const auto* counts = report.counts.data() + layer * experts;
    const double sum = std::accumulate(counts, counts + experts, 0.0);
    if (sum <= 0) continue;
    const double share = *std::max_element(counts, counts + experts) / sum;
    load.largest_share = std::max(load.largest_share, share);
    for (std::int64_t e = 0; e < experts; ++e) {
      const double p = counts[e] / sum;
      if (p > 0) entropy -= p * std::log(p) / std::log(static_cast<double>(std::max<std::int64_t>(experts, 2)));
    }
  }
  load.max_over_mean = load.largest_share * static_cast<double>(experts);
  if (layers > 0) load.entropy = entropy / static_cast<double>(layers);
  return load;
}

std::string line_of(const StepLine& step, const StepProgram& program, double peak_flops) {
  const StepReport& r = step.report;
  const ReportLayout& layout = layout_of(program);
  std::string line = fmt::format("step {:>5}  loss {:.4f}  norm {:.3f}  {:>8.0f} tokens/s", step.step, r.loss,
                                 r.gradient_norm, tokens_per_s(step, program));
  const double flops = program.model_flops_per_step_per_rank / step.time_s;
  if (peak_flops > 0) line += fmt::format("  MFU {:.1f} %", 100 * flops / peak_flops);
  line += fmt::format("  memory {}", format(step.high_water));
  if (layout.moe_layers > 0) {
    const ExpertLoad load = load_of(r, layout.moe_layers, layout.experts);
    line += fmt::format("  experts max/mean {:.2f} entropy {:.2f}  balance {:.4f}", load.max_over_mean, load.entropy,
                        r.balance_loss);
    if (r.dropped > 0) line += fmt::format("  dropped {:.0f}", r.dropped);
    if (load.largest_share > 0.5 && layout.experts > 2)
      line += fmt::format("\nwarning: one expert takes {:.0f} % of a layer's rows", 100 * load.largest_share);
  }
  if (r.skipped) line += "  skipped: the gradient norm is not finite";
  return line;
}

std::string log_head(const StepProgram& program, const std::string& backend, Bytes arena) {
  return Json{{"digest", program.digest},
              {"backend", backend},
              {"world_size", program.world_size},
              {"tokens_per_step_per_rank", program.tokens_per_step_per_rank},
              {"arena_bytes", arena.count}}
      .dump();
}

/// Tokens that chose each expert, of all ranks and micro-batches, by layer: the routing that the step had.
Json expert_tokens_of(const StepReport& report, const ReportLayout& layout) {
  Json layers = Json::array();
  for (std::int64_t layer = 0; layer < layout.moe_layers; ++layer) {
    const auto first = report.counts.begin() + static_cast<std::ptrdiff_t>(layer * layout.experts);
    Json& experts = layers.emplace_back(Json::array());
    for (auto count = first; count != first + static_cast<std::ptrdiff_t>(layout.experts); ++count)
      experts.push_back(std::llround(*count));
  }
  return layers;
}

std::string log_line(const StepLine& step, const StepProgram& program) {
  const StepReport& r = step.report;
  const ReportLayout& layout = layout_of(program);
  Json json = {{"step", step.step},
               {"loss", r.loss},
               {"gradient_norm", r.skipped ? Json(nullptr) : Json(r.gradient_norm)},
               {"skipped", r.skipped},
               {"step_time_s", step.time_s},
               {"tokens_per_s_per_rank", tokens_per_s(step, program)},
               {"high_water_bytes", step.high_water.count},
               {"sent_bytes", step.sent.count}};
  if (layout.moe_layers > 0) {
    const ExpertLoad load = load_of(r, layout.moe_layers, layout.experts);
    json["balance_loss"] = r.balance_loss;
    json["z_loss"] = r.z_loss;
    json["expert_load"] = {{"max_over_mean", load.max_over_mean}, {"entropy", load.entropy}};
    json["dropped"] = r.dropped;
    json["expert_tokens"] = expert_tokens_of(r, layout);
  }
  return json.dump();
}

Result<std::string> digest_of_log(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::string();
  const Json head = Json::parse(line, nullptr, false);
  if (head.is_object() && head.contains("digest") && head["digest"].is_string())
    return head["digest"].get<std::string>();
  return make_error("log.format", fmt::format("{} is there already and is no log of a run", path));
}

std::string trace_of(const StepProgram& program, const std::vector<std::vector<MeasuredOp>>& ranks) {
  const RankProgram& rank = program.classes.front().program;
  Json events = Json::array();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    events.push_back(
        {{"ph", "M"}, {"name", "process_name"}, {"pid", i}, {"args", {{"name", fmt::format("rank {}", i)}}}});
    for (int lane = 0; lane < lane_count; ++lane)
      events.push_back({{"ph", "M"},
                        {"name", "thread_name"},
                        {"pid", i},
                        {"tid", lane},
                        {"args", {{"name", name_of(static_cast<Lane>(lane))}}}});
    for (const MeasuredOp& op : ranks[i]) {
      const Op& of = rank.ops[op.op];
      events.push_back({{"ph", "X"},
                        {"name", of.role},
                        {"pid", i},
                        {"tid", static_cast<int>(of.lane)},
                        {"ts", op.start_s * 1e6},
                        {"dur", (op.end_s - op.start_s) * 1e6},
                        {"args", {{"op", op.op}, {"layer", of.layer}, {"micro_batch", op.micro_batch}}}});
    }
  }
  return Json{{"displayTimeUnit", "ms"}, {"otherData", {{"digest", program.digest}}}, {"traceEvents", events}}.dump();
}

}  // namespace plimsoll
