// Steps of one rank, and the ranks of one process (runtime/cli/train.hpp).
#include "runtime/cli/train.hpp"

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <thread>

#include "planner/base/format.hpp"
#include "planner/base/machine_error.hpp"
#include "planner/base/rank_names.hpp"
#include "planner/step/build_step.hpp"
#include "runtime/cli/cuda_backend.hpp"
#include "runtime/cli/job.hpp"
#include "runtime/cli/run_log.hpp"
#include "runtime/core/checkpoint.hpp"
#include "runtime/host/host_backend.hpp"
#include "runtime/host/thread_transport.hpp"
#include "runtime/mpi/mpi_world.hpp"
#include "runtime/tcp/tcp_world.hpp"

namespace plimsoll {

namespace {

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void print(const Diagnostics& diagnostics) {
  for (const Diagnostic& diagnostic : diagnostics) fmt::print(stderr, "{}\n", format(diagnostic));
}

void write_line(std::ofstream& log, const std::string& path, const std::string& line) {
  if (path.empty()) return;
  log << line << '\n';
  if (!log.flush()) throw MachineError(fmt::format("cannot write {}", path));
}

/// One rank from its first op to its last.
class RankRun {
 public:
  RankRun(Run& run, Transport& transport)
      : run_(run),
        transport_(transport),
        program_(build_step(run.scenario, transport.rank())),
        on_host_(run.options.backend == "host"),
        backend_(on_host_ ? std::make_unique<HostBackend>(program_, transport)
                          : make_cuda_backend(program_, transport, run.options.timeout_s)),
        execution_(program_, program_.classes.front().program, plan_arena(program_.classes.front().program),
                   *backend_) {}

  int run() {
    if (!begin()) return 1;
    for (std::int64_t step = progress_.steps; step < run_.options.steps; ++step) one_step(step);
    if (!run_.options.checkpoints.empty() && !saved_) save();
    barrier(transport_);  // a rank that leaves before the others looks like one that died
    run_.measured[static_cast<std::size_t>(transport_.rank()) % run_.measured.size()] = execution_.measured();
    return 0;
  }
  void abandon() { backend_->abandon(); }

 private:
  bool first_rank() const { return transport_.rank() == 0; }

  bool begin() {
    initialise(execution_, static_cast<std::uint64_t>(run_.options.seed));
    if (run_.options.resume) {
      const auto newest = newest_checkpoint(run_.options.checkpoints);
      if (!newest) throw MachineError(fmt::format("there is no checkpoint in {}", run_.options.checkpoints));
      const Result<Progress> progress = load_checkpoint(execution_, *newest);
      if (first_rank()) print(progress.diagnostics());
      if (!progress) return false;
      progress_ = *progress;
      if (first_rank()) fmt::print("resumed from {}\n", *newest);
    }
    if (!first_rank() || run_.options.log.empty()) return true;
    const bool append = run_.options.resume;
    log_.open(run_.options.log, append ? std::ios::app : std::ios::trunc);
    if (!append || log_.tellp() == 0)
      write_line(log_, run_.options.log, log_head(program_, run_.options.backend, execution_.arena().size));
    return true;
  }

  void one_step(std::int64_t step) {
    const std::int64_t accumulation = program_.gradient_accumulation, world = program_.world_size;
    Hyperparameters hyperparameters = run_.options.hyperparameters;
    hyperparameters.update = progress_.updates + 1;
    execution_.record_ops(!run_.options.trace.empty() && step + 1 == run_.options.steps);
    auto* host = dynamic_cast<HostBackend*>(backend_.get());
    if (host) host->clear_sent();
    const double start = now_s();
    StepLine line;
    line.report = execution_.step(hyperparameters, [&](std::int64_t i) {
      return run_.tokens.batch((step * accumulation + i) * world + transport_.rank());
    });
    line.time_s = now_s() - start;
    line.step = step + 1;
    line.arena = execution_.arena().size;
    line.high_water = execution_.high_water();
    if (host) {
      for (const auto& [key, bytes] : host->sent()) line.sent += Bytes(bytes);
    }
    progress_.steps = step + 1;
    if (!line.report.skipped) ++progress_.updates;
    if (first_rank()) {
      const double peak = on_host_ ? 0 : run_.scenario.cluster.device.bf16_flops_per_s;
      fmt::print("{}\n", line_of(line, program_, peak));
      std::fflush(stdout);
      write_line(log_, run_.options.log, log_line(line, program_));
    }
    saved_ = false;
    if (run_.options.checkpoint_every > 0 && progress_.steps % run_.options.checkpoint_every == 0) save();
  }

  void save() {
    if (run_.options.checkpoints.empty()) return;
    save_checkpoint(execution_, run_.options.checkpoints, transport_.rank(), progress_, [&] { barrier(transport_); });
    saved_ = true;
  }

  Run& run_;
  Transport& transport_;
  const StepProgram program_;
  const bool on_host_;
  std::unique_ptr<Backend> backend_;
  Execution execution_;
  std::ofstream log_;
  Progress progress_;
  bool saved_ = false;
};

/// All ranks as threads of this process.  The first that fails says why; the others follow within a moment, or are left where
/// they hang: a thread that waits inside a driver cannot be woken.
int run_threads(Run& run, int world) {
  constexpr std::chrono::seconds moment{10};
  ThreadWorld threads(world, std::chrono::duration<double>(run.options.timeout_s));
  std::mutex mutex;
  std::condition_variable changed;
  std::string reason;
  int running = world, code = 0;
  run.failed = [&](Transport& rank, const std::string& why) {
    const std::lock_guard lock(mutex);
    if (reason.empty()) reason = fmt::format("rank {}: {}", rank.rank(), why);
    rank.abandon();
    changed.notify_all();
  };
  std::vector<std::thread> ranks;
  ranks.reserve(static_cast<std::size_t>(world));
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] {
      const int ended = train(run, *threads.connect(rank));
      const std::lock_guard lock(mutex);
      code = std::max(code, ended);
      --running;
      changed.notify_all();
    });
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return running == 0 || !reason.empty(); });
  if (!changed.wait_for(lock, moment, [&] { return running == 0; })) {
    fmt::print(stderr, "plimsoll-run: {}\n", reason);
    std::fflush(nullptr);
    std::_Exit(3);
  }
  lock.unlock();
  for (std::thread& rank : ranks) rank.join();
  if (!reason.empty()) throw MachineError(reason);
  return code;
}

/// This process is one rank.
int run_process(Run& run, Transport& rank) {
  run.failed = [](Transport& self, const std::string& why) {
    fmt::print(stderr, "plimsoll-run: rank {}: {}\n", self.rank(), why);
    self.abandon();
    std::fflush(nullptr);
    std::_Exit(3);  // what a device still waits for would keep this rank for ever
  };
  return train(run, rank);
}

/// What connects this process to those that a launcher started with it; null if it was started alone.
std::unique_ptr<Transport> connect_processes(const RankNames& names, std::chrono::duration<double> timeout) {
  if (started_by_mpi()) return connect_by_mpi(timeout);
  if (names.world > 1) return connect_by_tcp(names, timeout);
  return nullptr;
}

/// A log that is gone on with must be of this very program.
bool same_program(const RunOptions& options, const StepProgram& program) {
  if (options.log.empty() || !options.resume) return true;
  const Result<std::string> digest = digest_of_log(options.log);
  print(digest.diagnostics());
  if (!digest) return false;
  if (digest->empty() || *digest == program.digest) return true;
  print(
      {make_error("log.digest",
                  fmt::format("{} is the log of program {}, this is program {}", options.log, *digest, program.digest),
                  "another --log, or the plan that it was run with")});
  return false;
}

}  // namespace

int train(Run& run, Transport& transport) {
  std::unique_ptr<RankRun> rank;
  try {
    rank = std::make_unique<RankRun>(run, transport);
    return rank->run();
  } catch (const std::exception& error) {
    run.failed(transport, error.what());
    if (rank) rank->abandon();
    return 3;
  }
}

int run_job(const RunOptions& options) {
  const std::optional<Scenario> scenario = load_job(options);
  if (!scenario) return 1;
  const int world = scenario->plan.world_size;
  const RankNames names = rank_names([](const char* name) -> const char* { return std::getenv(name); });
  const bool alone = !started_by_mpi() && names.world == 1;
  const StepProgram program = build_step(*scenario, 0);
  const RankProgram& rank = program.classes.front().program;
  const ArenaPlan arena = plan_arena(rank);
  if (!fits(*scenario, program, arena, options.backend == "host", alone ? world : 1)) return 1;
  if (!same_program(options, program)) return 1;
  const Result<TokenSource> tokens =
      TokenSource::open(options.data, rank.feed, static_cast<std::uint64_t>(options.seed));
  print(tokens.diagnostics());
  if (!tokens) return 1;
  Run run{options,
          *scenario,
          *tokens,
          std::vector<std::vector<MeasuredOp>>(static_cast<std::size_t>(alone ? world : 1)),
          {}};
  const auto processes = connect_processes(names, std::chrono::duration<double>(options.timeout_s));
  if (processes && processes->world() != world)
    throw MachineError(
        fmt::format("{} processes were started, but the plan is for {} ranks", processes->world(), world));
  if (!processes || processes->rank() == 0)
    fmt::print("{} on {}, arena {} each, program {}, {}\n", scenario->model.name, counted(world, "rank"),
               format(arena.size), program.digest, tokens->words());
  const int code = processes ? run_process(run, *processes) : run_threads(run, world);
  if (code == 0 && !options.trace.empty() && (!processes || processes->rank() == 0)) {
    std::ofstream file(options.trace);
    file << trace_of(program, run.measured);
    if (!file.flush()) throw MachineError(fmt::format("cannot write {}", options.trace));
  }
  return code;
}

}  // namespace plimsoll
