// What must a machine be able to do to run a step program?  Launch a routine on operands that lie in one arena, communicate,
// copy to and from the host, wait for a lane.  Two kinds of machine: the host (runtime/host) and CUDA devices (runtime/cuda).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "planner/step/program.hpp"

namespace plimsoll {

/// A part of a buffer: where an op reads or writes.
struct Operand {
  std::byte* data = nullptr;  ///< on the device, or in host memory for host buffers
  DType dtype = DType::bf16;
  std::int64_t numel = 0;  ///< elements from `data` to the end of its buffer
  BufferId buffer = 0;
};

/// An op with its operands resolved.
struct Operation {
  OpId id = 0;
  const Op& op;
  const RankProgram& program;
  std::span<const Operand> reads, writes;
  const Call& call() const { return program.calls[std::get<Compute>(op.action).call]; }
};

/// The optimizer's settings for one step.
struct Hyperparameters {
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
  std::int64_t update = 1;  ///< t of the bias correction, from 1; skipped steps do not count
};

/// One op as it ran, in seconds from the step's start: on the device where the backend knows it, else by the host's clock from
/// when it was issued to when the call returned.
struct MeasuredOp {
  OpId op = 0;
  std::int64_t micro_batch = 0;
  double start_s = 0, end_s = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  /// Takes the arena: one block.  @throws MachineError if the device has no room
  virtual std::byte* allocate_arena(Bytes size) = 0;
  /// Host memory that copies to and from the device reach without making the host wait.
  virtual std::shared_ptr<std::byte> allocate_host(Bytes size) {
    const std::shared_ptr<std::byte[]> memory(new std::byte[static_cast<std::size_t>(size.count)]);
    return {memory, memory.get()};
  }
  /// The optimizer's settings from the next op on.
  virtual void set(const Hyperparameters& hyperparameters) = 0;

  // Ops of the step, in issue order.  @throws MachineError: a device or a peer failed
  virtual void launch(const Operation& operation) = 0;
  virtual void communicate(const Operation& operation, const Collective& collective) = 0;
  /// Host memory to the first operand written.
  virtual void copy_to_device(const Operation& operation, std::span<const std::byte> from) = 0;
  /// The first operand read to the host: to the first operand written, or, if there is none, to where the backend itself
  /// looks counts up.
  virtual void copy_to_host(const Operation& operation) = 0;
  virtual void wait_for(Lane lane) = 0;
  /// A buffer begins or ends its life.
  virtual void begin_buffer(const Operand&) {}
  virtual void end_buffer(const Operand&) {}
  /// All lanes meet: between two rounds of a repeated micro-batch and between steps.
  virtual void join_lanes() = 0;

  /// This rank cannot go on: ends what is under way, so that the backend can be destroyed though its peers are gone.
  virtual void abandon() {}

  /// From now on, or no longer: remembers when each op runs on the device.  What ran before has ended.
  virtual void record_times(bool) {}
  /// What was remembered, in the order of issue; empty: the host runs each op itself.
  virtual std::vector<MeasuredOp> times() { return {}; }

  // Outside the step.
  virtual void write(const Operand& to, std::span<const std::byte> from) = 0;
  virtual void read(const Operand& from, std::span<std::byte> to) = 0;
  /// The buffer from the operand on becomes 0.
  virtual void clear(const Operand& operand) = 0;
};

}  // namespace plimsoll
