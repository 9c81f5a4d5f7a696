// How accurate are the predictions, and did they get worse?  Every figure of the measured runs in tests/data/measured, by
// kind, against the errors that were reached.  A change that improves them lowers the bounds here; none raises them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "planner/cli/validation.hpp"
#include "planner/spec/document.hpp"

namespace plimsoll {
namespace {

struct Bound {
  const char* kind;
  double mean, worst;  ///< percent
};

// Reached on 2026-11-30, in percent, rounded up.
constexpr Bound bounds[] = {
    {"allocated, peak of a steady step", 0.004, 0.06},
    {"reserved, peak of a steady step", 0.22, 5.0},
    {"device, peak of a steady step", 0.21, 4.9},
    {"allocated, end of a phase, construction", 0.001, 0.001},
    {"allocated, peak of a phase, construction", 0.001, 0.001},
    {"reserved, end of a phase, construction", 0.001, 0.001},
    {"host resident, end of a phase", 1.4, 5.5},
    {"host resident, peak of a phase", 1.3, 5.5},
    {"host pinned, end of a phase", 0.001, 0.002},
    {"allocated, end of a phase, first step", 0.001, 0.002},
    {"allocated, peak of a phase, first step", 0.001, 0.002},
    {"reserved, end of a phase, first step", 0.15, 2.6},
    {"allocated, end of a phase, steady step", 0.004, 0.07},
    {"allocated, peak of a phase, steady step", 0.004, 0.07},
    {"reserved, end of a phase, steady step", 0.22, 5.0},
    {"allocated, end of a phase, saving", 0.005, 0.04},
    {"allocated, peak of a phase, saving", 0.002, 0.02},
    {"checkpoint files above 1 MB", 0.001, 0.001},
    {"step time", 4.33, 19},
};

const Validation& validation() {
  static const Validation result = [] {
    std::vector<MeasuredTable> tables;
    for (const char* name : {"h200_torch", "h200_deepspeed", "h200_deepspeed_host"}) {
      tables.push_back(
          read_measured_table(load_source(fmt::format("{}/tests/data/measured/{}.json", PLIMSOLL_SOURCE_DIR, name))));
    }
    return validate(std::move(tables));
  }();
  return result;
}

TEST(Accuracy, EveryRowIsAnswered) {
  for (const Unanswered& row : validation().unanswered) ADD_FAILURE() << row.id << ": " << row.reason;
  for (const Diagnostic& diagnostic : validation().diagnostics) {
    if (diagnostic.severity == Severity::error) ADD_FAILURE() << format(diagnostic);
  }
}

TEST(Accuracy, NoFigureGotWorse) {
  const std::vector<FigureSummary> reached = summaries_by_kind(validation().rows);
  for (const FigureSummary& summary : reached) {
    const auto bound =
        std::find_if(std::begin(bounds), std::end(bounds), [&](const Bound& b) { return summary.figure == b.kind; });
    if (bound == std::end(bounds)) {
      ADD_FAILURE() << "no bound for: " << summary.figure;
      continue;
    }
    EXPECT_LE(100 * summary.mean, bound->mean) << summary.figure << ", mean of " << summary.n;
    EXPECT_LE(100 * summary.max, bound->worst) << summary.figure << ", worst: " << summary.worst;
  }
  EXPECT_EQ(reached.size(), std::size(bounds));
}

/// The rows of the tables as they were written.
const std::map<std::string, nlohmann::json>& table_rows() {
  static const std::map<std::string, nlohmann::json> rows = [] {
    std::map<std::string, nlohmann::json> result;
    for (const char* name : {"h200_torch", "h200_deepspeed"}) {
      std::ifstream file(fmt::format("{}/tests/data/measured/{}.json", PLIMSOLL_SOURCE_DIR, name));
      const nlohmann::json table = nlohmann::json::parse(file);
      for (const nlohmann::json& row : table.at("rows")) result[row.at("id")] = row;
    }
    return result;
  }();
  return rows;
}

/// Predicted and measured step times by row.
std::vector<std::pair<std::string, std::pair<double, double>>> step_times() {
  std::vector<std::pair<std::string, std::pair<double, double>>> times;
  for (const Comparison& row : validation().rows) {
    if (row.figure == "step_time" && table_rows().count(row.id) != 0)
      times.push_back({row.id, {row.predicted, row.measured}});
  }
  return times;
}

// Steps that neither a host nor eager Python bounds: all but stage 3, AutoEP, offload and compiled layers, above 0.2 s.
TEST(Accuracy, StepsBoundByTheDevice) {
  double sum = 0, bias = 0, worst = 0;
  int n = 0;
  for (const auto& [id, time] : step_times()) {
    const nlohmann::json& plan = table_rows().at(id).at("plan");
    const bool deepspeed = plan.at("engine") == "deepspeed";
    const bool autoep = plan.value("/moe/implementation"_json_pointer, "") == "autoep";
    if ((deepspeed && (plan.at("zero").at("stage") == 3 || autoep)) || plan.value("compile", false) ||
        id.find("offload") != std::string::npos || time.second < 0.2)
      continue;
    const double error = time.first / time.second - 1;
    sum += std::abs(error);
    bias += error;
    worst = std::max(worst, std::abs(error));
    ++n;
  }
  EXPECT_EQ(n, 27);
  EXPECT_LE(sum / n, 0.025);
  EXPECT_LE(std::abs(bias / n), 0.01);
  // One run of stage 2 with accumulation, whose steps took from 422 to 466 ms: its host was slower than the others'.
  EXPECT_LE(worst, 0.08);
}

// A planner ranks plans: of one model's runs, the time a token takes, every pair in the order that was measured or not.
TEST(Accuracy, PlansOfOneModelRankAsMeasured) {
  std::map<std::string, std::vector<std::pair<double, double>>> by_model;
  for (const auto& [id, time] : step_times()) {
    const nlohmann::json& row = table_rows().at(id);
    const nlohmann::json& plan = row.at("plan");
    const double tokens = plan.at("micro_batch").get<double>() * plan.at("sequence").get<double>() *
                          plan.value("gradient_accumulation", 1);
    by_model[row.at("model").dump()].push_back({time.first / tokens, time.second / tokens});
  }
  int concordant = 0, discordant = 0;
  for (const auto& [model, times] : by_model) {
    for (std::size_t i = 0; i < times.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        const double order = (times[i].first - times[j].first) * (times[i].second - times[j].second);
        concordant += order > 0;
        discordant += order < 0;
      }
    }
  }
  const double tau = static_cast<double>(concordant - discordant) / (concordant + discordant);
  EXPECT_GT(concordant + discordant, 300);
  EXPECT_GE(tau, 0.9);
}

Validation of_table(const char* name) {
  std::vector<MeasuredTable> tables;
  tables.push_back(
      read_measured_table(load_source(fmt::format("{}/tests/data/measured/{}.json", PLIMSOLL_SOURCE_DIR, name))));
  return validate(std::move(tables));
}

// Seven runs with low-rank adapters, compared when the rules for them had been written: what is off are remainders of blocks.
TEST(Accuracy, OfAdaptersIsThatOfFullTraining) {
  const Validation adapters = of_table("h200_adapters");
  EXPECT_TRUE(adapters.unanswered.empty());
  EXPECT_GE(adapters.rows.size(), 140U);
  for (const Comparison& row : adapters.rows) {
    const bool reserved = row.figure.find("reserved") != std::string::npos;
    EXPECT_LE(std::abs(row.error), reserved ? 0.0015 : 0.0002) << row.id << " " << row.figure;
  }
}

// Nine pairs of model and plan on two GPUs, measured when both models had been written.  AutoEP's rows hang on routing: of
// ep 1 it was not recorded, of ep 2 earlier steps' left other holes.  Native experts are a loop of the
// host's, and hosts differ by 30 %.
TEST(Accuracy, OfPairsOfModelAndPlanMeasuredAfterwards) {
  const Validation pairs = of_table("h200_x2");
  EXPECT_TRUE(pairs.unanswered.empty());
  EXPECT_EQ(pairs.rows.size(), 236U);
  for (const Comparison& row : pairs.rows) {
    const bool autoep = row.id.find("autoep") != std::string::npos;
    const double allowed = row.is_time() ? (row.id.find("native") != std::string::npos ? 0.3 : 0.07)
                           : row.figure.find("allocated") != std::string::npos ? (autoep ? 0.0004 : 0.00001)
                                                                               : (autoep ? 0.011 : 0.0011);
    EXPECT_LE(std::abs(row.error), allowed) << row.id << " " << row.figure;
  }
}

// plimsoll-run on two GPUs.  Its arena is the ledger's, to the byte; device memory lies in its interval, 21 MiB wide: what is off
// are scratch of its own kernels and kernels loaded for a shape.
// Time within 4.4 %: products run at the clocks of the slower GPU, small kernels are priced by their bytes.
// With experts exchanged rows state the routing of the step nearest the median, which untrained routers make uneven.
TEST(Accuracy, OfTheReferenceRuntime) {
  const Validation runs = of_table("h200_plimsoll_run");
  EXPECT_TRUE(runs.unanswered.empty());
  ASSERT_EQ(runs.rows.size(), 21U);
  for (const Comparison& row : runs.rows) {
    const double allowed = row.figure == "reserved_peak" ? 0 : row.figure == "device_peak" ? 0.0005 : 0.044;
    EXPECT_LE(std::abs(row.error), allowed) << row.id << " " << row.figure;
    EXPECT_TRUE(row.within().value_or(true)) << row.id << " " << row.figure;
  }
}

/// Pages of files that a process has mapped when a phase ends, libraries above all: what is resident, neither anonymous nor
/// pinned.  By row and phase.
std::map<std::string, std::map<std::string, double>> mapped_pages(const char* table) {
  std::map<std::string, std::map<std::string, double>> pages;
  const auto json =
      nlohmann::json::parse(std::ifstream(fmt::format("{}/tests/data/measured/{}.json", PLIMSOLL_SOURCE_DIR, table)));
  for (const auto& row : json["rows"]) {
    for (const auto& [name, phase] : row["phases"].items()) {
      pages[row["id"]][name] = phase["host_resident_bytes_at_end"].get<double>() -
                               phase["host_anonymous_bytes"].get<double>() - phase["host_pinned_bytes"].get<double>();
    }
  }
  return pages;
}

// Other sub-groups, nothing pinned, the optimizer alone.  Pinned to 1 MB; GPU to 0.02 %; resident within 3 % or 300 MB.
// These processes have 300 MB more of library files mapped (another installation of the libraries) than those that the base
// was read from, in every phase alike: pages that they share with others and took for no tensor.  They are left out.
TEST(Accuracy, OfOtherWaysToOffload) {
  std::map<std::string, double> usual;
  const auto rows_of_base = mapped_pages("h200_deepspeed_host");
  for (const auto& [id, phases] : rows_of_base) {
    for (const auto& [name, bytes] : phases) usual[name] += bytes / static_cast<double>(rows_of_base.size());
  }
  auto mapped = mapped_pages("h200_offload");
  const Validation offload = of_table("h200_offload");
  EXPECT_TRUE(offload.unanswered.empty());
  EXPECT_GE(offload.rows.size(), 105U);
  for (const Comparison& row : offload.rows) {
    const double off = std::abs(row.predicted - row.measured);
    if (row.figure.find("pinned") != std::string::npos) {
      EXPECT_LE(off, 1e6) << row.id << " " << row.figure;
    } else if (row.figure.find("host_resident") != std::string::npos) {
      const std::string phase = row.figure.substr(0, row.figure.find('.'));
      const double more = mapped.at(row.id).at(phase) - usual.at(phase);
      EXPECT_GT(more, 200e6) << row.id << " " << phase;
      EXPECT_LE(std::abs(row.predicted + more - row.measured), std::max(300e6, 0.03 * row.measured))
          << row.id << " " << row.figure;
    } else {
      EXPECT_LE(off, 0.0002 * row.measured) << row.id << " " << row.figure;
    }
  }
}

// Runs of other shapes and options on one GPU, compared when the memory model had been written: eager attention, foreach
// AdamW, clipping, accumulation, expandable segments, odd vocabularies, heads of 96.  Each process had its pool to itself:
// reserved memory agrees in every phase to one segment of 2 MiB.  Steps that a host bounds, and one of odd shapes, are off
// the most in time.
TEST(Accuracy, OfRunsMeasuredAfterwards) {
  const Validation later = of_table("h200_single");
  EXPECT_TRUE(later.unanswered.empty());
  EXPECT_GE(later.rows.size(), 520U);
  double sum = 0;
  int n = 0;
  for (const Comparison& row : later.rows) {
    if (row.figure == "step_time") {
      EXPECT_LE(std::abs(row.error), 0.09) << row.id;
      sum += std::abs(row.error);
      ++n;
    } else if (row.figure.find("reserved") != std::string::npos) {
      EXPECT_LE(std::abs(row.predicted - row.measured), 2 << 20) << row.id << " " << row.figure;
    } else {
      EXPECT_LE(std::abs(row.error), 0.0002) << row.id << " " << row.figure;
    }
  }
  EXPECT_EQ(n, 23);
  EXPECT_LE(sum / n, 0.029);
}

// Seventy-five runs of other shapes and options on one and two GPUs: heads of 76, 80, 128 and 256, one expert a token, layers
// with and without experts, biases, accumulation, fp32 accumulation and communication, small buckets, persistence, sub-groups,
// adapters, offload, expandable segments, compiled layers under DeepSpeed too.  They are small (2 to 7 GB), so that a block's
// remainder of 1 MiB counts for ten times as much as elsewhere.
TEST(Accuracy, OfOtherShapesAndOptions) {
  const Validation shapes = of_table("h200_shapes");
  EXPECT_TRUE(shapes.unanswered.empty());
  EXPECT_GE(shapes.rows.size(), 1685U);
  double allocated = 0, reserved = 0;
  int n = 0, of_reserved = 0, exact = 0;
  for (const Comparison& row : shapes.rows) {
    const double off = std::abs(row.predicted - row.measured);
    if (row.figure == "allocated_peak") {
      // Its caller held the loss of the step before, and with it the embedding's output and its gradient.
      if (row.id == "ds-z3-lora-ckpt-drop") continue;
      EXPECT_LE(std::abs(row.error), 0.0011) << row.id;
      allocated += std::abs(row.error);
      ++n;
    } else if (row.figure == "reserved_peak") {
      reserved += std::abs(row.error);
      ++of_reserved;
      exact += off == 0;
      // Compiled layers whose compiler timed candidates beside a buffer of 60 MiB, which is not replayed.
      const bool timed = row.id.starts_with("fsdp2-c-");
      EXPECT_LE(std::abs(row.error), timed ? 0.1 : 0.021) << row.id;
    } else if (row.figure.find("allocated") != std::string::npos) {
      // A first step that compiles may reach what its compiler takes.
      const bool compiles = row.id == "ds-c-z2-mixtral-layers" && row.figure == "first_step_backward.allocated_peak";
      EXPECT_LE(off, compiles ? 35e6 : std::max(6e6, 0.0005 * row.measured)) << row.id << " " << row.figure;
    }
  }
  EXPECT_LE(allocated / n, 0.0001);
  EXPECT_LE(reserved / of_reserved, 0.0038);
  EXPECT_GE(exact, 49);
}

/// A step that the device bounds: above 0.2 s, not of stage 3, AutoEP, a CPU optimizer or compiled layers.
bool bound_by_the_device(const std::string& id, double seconds) {
  if (seconds < 0.2) return false;
  for (const char* other : {"z3-", "autoep", "-off", "compile"}) {
    if (id.find(other) != std::string::npos) return false;
  }
  return true;
}

// Ninety-one cases drawn at random in two draws (sizes, knobs, options), predicted before they were measured.  Three machines; the
// host of the second, which measured AutoEP, two rows of native experts and the compiled ones of the first draw, took 1.4 times as
// long as the first's.
TEST(Accuracy, OfCasesDrawnAtRandom) {
  const Validation drawn = of_table("h200_drawn");
  EXPECT_TRUE(drawn.unanswered.empty());
  EXPECT_EQ(drawn.rows.size(), 2173U);
  double sum = 0, bias = 0, reserved = 0;
  int n = 0, of_reserved = 0;
  for (const Comparison& row : drawn.rows) {
    if (row.figure == "step_time") {
      EXPECT_LE(std::abs(row.error), 0.42) << row.id;
      if (!bound_by_the_device(row.id, row.measured) || row.id.find("nodrop") != std::string::npos ||
          row.id.find("ep1-k2-ckpt") != std::string::npos)
        continue;
      EXPECT_LE(std::abs(row.error), 0.05) << row.id;
      sum += std::abs(row.error);
      bias += row.error;
      ++n;
    } else if (row.figure == "allocated_peak") {
      // A loop that keeps its last loss keeps the embedding's output and its gradient, if adapters are recomputed.
      EXPECT_LE(std::abs(row.error), row.id == "lora-amp-ckpt" ? 0.03 : 0.0012) << row.id;
    } else if (row.figure == "reserved_peak") {
      // ZeRO-3: when weights come back hangs on how far the host is ahead.  Compiled: the compiler's timing buffers.  FSDP2 on one
      // GPU: no collective holds its copies back.
      const bool of_one = row.id == "fsdp2-gas2-x1" || row.id == "fsdp2-ckpt-foreach-x1";
      EXPECT_LE(std::abs(row.error), row.id.find("z3-") != std::string::npos       ? 0.047
                                     : row.id.find("compile") != std::string::npos ? 0.0117
                                     : of_one                                      ? 0.0026
                                                                                   : 0.0002)
          << row.id;
      EXPECT_TRUE(std::abs(row.error) < 0.0117 || row.within().value_or(false)) << row.id;
      reserved += std::abs(row.error);
      ++of_reserved;
    } else if (row.figure == "device_peak") {
      EXPECT_LE(std::abs(row.predicted - row.measured), std::max(8e6, 0.047 * row.measured)) << row.id;
    } else if (row.figure.find("allocated") != std::string::npos) {
      EXPECT_LE(std::abs(row.error), 0.0014) << row.id << " " << row.figure;
    }
  }
  EXPECT_EQ(n, 15);
  EXPECT_LE(sum / n, 0.019);
  EXPECT_LE(std::abs(bias / n), 0.008);
  EXPECT_LE(reserved / of_reserved, 0.0016);
}

// Layers that are compiled module by module, between the hooks of ZeRO stage 3.  What their compiler times in the first step
// is not replayed and stays in the pool.  In the three dense rows on two GPUs two tensors of N h stay from the first step on,
// one from forward and one from backward; whose they are is not known.
TEST(Accuracy, OfLayersCompiledBetweenHooks) {
  const Validation compiled = of_table("h200_compiled");
  EXPECT_TRUE(compiled.unanswered.empty());
  EXPECT_EQ(compiled.rows.size(), 286U);
  int exact = 0;
  for (const Comparison& row : compiled.rows) {
    const bool allocated = row.figure.find("allocated") != std::string::npos;
    const bool keeps_two = row.id.ends_with("-x2") && row.id.find("mixtral") == std::string::npos;
    if (allocated && keeps_two) {
      const double rows = row.id == "z3-compile-x2" ? 3 * 1536 : 2 * 2048;
      const double off = row.measured - row.predicted;
      EXPECT_LE(off, 2 * rows * 2048 * 2 + 5e5) << row.id << " " << row.figure;
      EXPECT_GE(off, -2e3) << row.id << " " << row.figure;
    } else if (allocated) {
      EXPECT_LE(std::abs(row.error), 0.00001) << row.id << " " << row.figure;
      ++exact;
    } else {
      // The pool of a model that is being built on two GPUs holds 59 MB more.
      EXPECT_LE(std::abs(row.error), row.figure == "model_built.reserved_end" ? 0.12 : 0.026)
          << row.id << " " << row.figure;
    }
  }
  EXPECT_EQ(exact, 136);
}

TEST(Accuracy, GivenRoutingsLieWithinTheStatedIntervals) {
  for (const Comparison& row : validation().apart) {
    if (const auto within = row.within()) {
      EXPECT_TRUE(*within) << row.id << " " << row.figure << ": " << row.measured << " beside " << row.predicted;
    }
  }
}

}  // namespace
}  // namespace plimsoll
