// The step for real: walks the ops of a rank's program in issue order and asks a backend to run each.  Knows no model: all
// there is to know stands in the program (planner/step/call.hpp) and in the arena plan.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "planner/account/arena.hpp"
#include "runtime/core/backend.hpp"

namespace plimsoll {

/// Tokens of one micro-batch and what follows each of them; [tokens] both.
struct MicroBatch {
  std::vector<std::int64_t> ids, labels;
};

/// What one step reports, summed over the ranks.
struct StepReport {
  double loss = 0, balance_loss = 0, z_loss = 0;
  double gradient_norm = 0;
  double dropped = 0;         ///< rows beyond an expert's capacity
  bool skipped = false;       ///< the norm was not finite: no update
  std::vector<float> counts;  ///< tokens that chose each expert, [MoE layers, experts]
};

/// A rank's job on a backend: its buffers in one arena, its state between steps.
class Execution {
 public:
  /// Takes the arena and brings the persistent buffers to life; they are not filled yet (runtime/core/state.hpp).
  /// @param program outlives the execution; every launch states its routine
  /// @throws MachineError if the device has no room
  Execution(const StepProgram& program, const RankProgram& rank, ArenaPlan arena, Backend& backend);

  const StepProgram& program() const { return program_; }
  const RankProgram& rank() const { return rank_; }
  const ArenaPlan& arena() const { return arena_; }
  Backend& backend() { return backend_; }

  /// Runs one step: the first time the program's first step, then its steady one.
  /// @param feed gives micro-batch i of this step
  StepReport step(const Hyperparameters& hyperparameters, const std::function<MicroBatch(std::int64_t)>& feed);

  /// The buffer from element `first` on.
  Operand operand(BufferId buffer, std::int64_t first = 0) const;
  /// The last step's ops as they ran, if recording was asked for.
  const std::vector<MeasuredOp>& measured() const { return measured_; }
  void record_ops(bool on) { recording_ = on; }
  /// Highest end of a live buffer, and the highest sum of live sizes, over all steps so far.
  Bytes high_water() const { return high_water_; }
  Bytes most_live() const { return most_live_; }

 private:
  void run(OpId first, OpId end);
  void run_repeated(OpId first, OpId end);
  void run_op(OpId id);
  void act(const Operation& operation);
  void allocate(BufferId buffer);
  void release(BufferId buffer);
  StepReport report_of() const;
  void take_times();

  const StepProgram& program_;
  const RankProgram& rank_;
  const ArenaPlan arena_;
  Backend& backend_;
  std::byte* base_ = nullptr;
  std::vector<std::shared_ptr<std::byte>> host_buffers_;  // by BufferId, those in host memory
  std::vector<Operand> operands_;
  const std::function<MicroBatch(std::int64_t)>* feed_ = nullptr;
  MicroBatch batch_;
  std::int64_t micro_batch_ = 0;
  bool ids_copied_ = false;
  bool first_done_ = false, recording_ = false;
  std::vector<MeasuredOp> measured_;
  double step_start_s_ = 0;
  Bytes live_, most_live_, high_water_;
};

/// True if the program states what its launches compute, so that it can be executed.
bool is_executable(const RankProgram& program);

}  // namespace plimsoll
