// Walks the ops (runtime/core/execute_step.hpp).
#include "runtime/core/execute_step.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include "planner/base/check.hpp"
#include "planner/base/machine_error.hpp"
#include "planner/step/listing.hpp"

namespace plimsoll {

namespace {

constexpr Bytes alignment{512};  // of plan_arena

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

}  // namespace

bool is_executable(const RankProgram& program) {
  if (program.flat_groups.empty()) return false;
  for (OpId id = 0; id < program.steady_end; ++id) {
    const auto* compute = std::get_if<Compute>(&program.ops[id].action);
    if (compute && compute->call == 0) return false;
  }
  return true;
}

Execution::Execution(const StepProgram& program, const RankProgram& rank, ArenaPlan arena, Backend& backend)
    : program_(program), rank_(rank), arena_(std::move(arena)), backend_(backend), host_buffers_(rank.buffers.size()) {
  CHECK(is_executable(rank), "the engine of this program does not state what its launches compute");
  base_ = backend_.allocate_arena(arena_.size);
  // What stands before the first step lives as long as the job.
  OpId first_step = 0;
  for (const PhaseSpan& phase : rank_.phases) {
    if (std::string_view(phase.name) == "initialized") first_step = phase.end;
  }
  run(0, first_step);
}

Operand Execution::operand(BufferId buffer, std::int64_t first) const {
  const BufferDecl& decl = rank_.buffers[buffer];
  const std::int64_t size = size_of(decl.dtype);
  std::byte* start = decl.pool == Lane::host ? host_buffers_[buffer].get() : base_ + arena_.offsets[buffer].count;
  return {start + first * size, decl.dtype, decl.size.count / size - first, buffer};
}

void Execution::allocate(BufferId buffer) {
  const BufferDecl& decl = rank_.buffers[buffer];
  if (decl.pool == Lane::host) {
    host_buffers_[buffer] = backend_.allocate_host(decl.size);
    return;
  }
  const Bytes block(std::max(alignment.count, round_up(decl.size.count, alignment.count)));
  live_ += block;
  most_live_ = std::max(most_live_, live_);
  high_water_ = std::max(high_water_, arena_.offsets[buffer] + block);
  backend_.begin_buffer(operand(buffer));
}

void Execution::release(BufferId buffer) {
  const BufferDecl& decl = rank_.buffers[buffer];
  if (decl.pool == Lane::host) {
    host_buffers_[buffer].reset();
    return;
  }
  live_ -= Bytes(std::max(alignment.count, round_up(decl.size.count, alignment.count)));
  backend_.end_buffer(operand(buffer));
}

void Execution::act(const Operation& operation) {
  std::visit(Overloaded{
                 [&](const Compute&) { backend_.launch(operation); },
                 [&](const Collective& c) { backend_.communicate(operation, c); },
                 [&](const Send&) { CHECK(false, "point-to-point messages are not executed"); },
                 [&](const Receive&) { CHECK(false, "point-to-point messages are not executed"); },
                 [&](const HostCopy& copy) {
                   if (!copy.to_device) return backend_.copy_to_host(operation);
                   // The copies to the device are, in order, ids and labels of each micro-batch.
                   if (!ids_copied_) batch_ = (*feed_)(micro_batch_);
                   const std::vector<std::int64_t>& from = ids_copied_ ? batch_.labels : batch_.ids;
                   if (ids_copied_) ++micro_batch_;
                   ids_copied_ = !ids_copied_;
                   backend_.copy_to_device(operation, std::as_bytes(std::span(from)));
                 },
                 [&](const HostWork&) {},
                 [&](const HostSync& sync) { backend_.wait_for(sync.waits_for); },
                 [&](const Alloc& a) { allocate(a.buffer); },
                 [&](const Free& a) { release(a.buffer); },
                 [&](const EmptyCache&) {},
             },
             operation.op.action);
}

void Execution::run_op(OpId id) {
  const Op& op = rank_.ops[id];
  operands_.clear();
  for (std::size_t i = 0; i < std::size_t{op.read_count} + op.write_count; ++i)
    operands_.push_back(operand(rank_.refs[op.first_ref + i], rank_.offsets[op.first_ref + i]));
  const std::span<const Operand> all(operands_);
  const Operation operation{id, op, rank_, all.first(op.read_count), all.subspan(op.read_count)};
  const double start = recording_ ? now_s() : 0;
  try {
    act(operation);
  } catch (const MachineError& error) {
    throw MachineError(fmt::format("{}\n  at op {}: {}", error.what(), id, line_of(program_, rank_, id)));
  }
  const bool memory = std::holds_alternative<Alloc>(op.action) || std::holds_alternative<Free>(op.action);
  if (recording_ && !memory) measured_.push_back({id, micro_batch_, start - step_start_s_, now_s() - step_start_s_});
}

void Execution::run(OpId first, OpId end) {
  for (OpId id = first; id < end; ++id) run_op(id);
}

void Execution::run_repeated(OpId first, OpId end) {
  for (const Repeat& repeat : rank_.repeats) {
    if (repeat.first < first || repeat.end > end) continue;
    run(first, repeat.first);
    for (std::int64_t i = 0; i < repeat.count; ++i) {
      run(repeat.first, repeat.end);
      backend_.join_lanes();
    }
    first = repeat.end;
  }
  run(first, end);
}

StepReport Execution::step(const Hyperparameters& hyperparameters,
                           const std::function<MicroBatch(std::int64_t)>& feed) {
  backend_.set(hyperparameters);
  feed_ = &feed;
  micro_batch_ = 0;
  measured_.clear();
  if (recording_) backend_.record_times(true);
  step_start_s_ = now_s();
  OpId first = rank_.steady_first, end = rank_.steady_end;
  if (!first_done_) {
    for (const PhaseSpan& phase : rank_.phases) {
      if (std::string_view(phase.name) == "initialized") first = phase.end;
    }
    end = rank_.steady_first;
    first_done_ = true;
  }
  run_repeated(first, end);
  backend_.join_lanes();
  if (recording_) take_times();
  return report_of();
}

/// Times of the device take the place of the host's; both are in the order of issue.
void Execution::take_times() {
  auto measured = measured_.begin();
  for (const MeasuredOp& on_device : backend_.times()) {
    while (measured->op != on_device.op) ++measured;
    measured->start_s = on_device.start_s;
    measured->end_s = on_device.end_s;
    ++measured;
  }
  backend_.record_times(false);
}

StepReport Execution::report_of() const {
  const ReportLayout& layout = rank_.report;
  const auto* values = reinterpret_cast<const float*>(operand(layout.host).data);
  StepReport report;
  report.loss = values[report_slot::loss];
  report.balance_loss = values[report_slot::balance_loss];
  report.z_loss = values[report_slot::z_loss];
  report.dropped = values[report_slot::dropped];
  report.gradient_norm = std::sqrt(static_cast<double>(values[report_slot::squared_norm]));
  report.skipped = !std::isfinite(report.gradient_norm);
  report.counts.assign(values + report_slot::counts, values + report_slot::counts + layout.moe_layers * layout.experts);
  return report;
}

}  // namespace plimsoll
