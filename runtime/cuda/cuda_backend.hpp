// A step program on a CUDA device: a stream a lane, an event a source of waits between lanes, one arena, cuBLASLt, cuDNN and
// NCCL, own kernels where no library has them.  Activations and weights are bf16.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "runtime/core/backend.hpp"
#include "runtime/host/transport.hpp"

namespace plimsoll {

class CudaBackend final : public Backend {
 public:
  /// Takes the device of the rank's place in its node.
  /// @param transport carries the NCCL ids of the groups; outlives the backend
  /// @throws MachineError if there is no device, or the program computes in another type than bf16
  CudaBackend(const StepProgram& program, Transport& transport, double timeout_s);
  ~CudaBackend() override;
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  std::byte* allocate_arena(Bytes size) override;
  std::shared_ptr<std::byte> allocate_host(Bytes size) override;
  void set(const Hyperparameters& hyperparameters) override;
  void launch(const Operation& operation) override;
  void communicate(const Operation& operation, const Collective& collective) override;
  void copy_to_device(const Operation& operation, std::span<const std::byte> from) override;
  void copy_to_host(const Operation& operation) override;
  void wait_for(Lane lane) override;
  void join_lanes() override;
  void abandon() override;
  void record_times(bool on) override;
  std::vector<MeasuredOp> times() override;
  void write(const Operand& to, std::span<const std::byte> from) override;
  void read(const Operand& from, std::span<std::byte> to) override;
  void clear(const Operand& operand) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace plimsoll
