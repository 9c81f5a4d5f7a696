// A step program on the host: Eigen kernels in issue order, one rank, collectives over a transport.  The numerical reference.
#pragma once

#include <memory>

#include "runtime/core/backend.hpp"
#include "runtime/host/collectives.hpp"

namespace plimsoll {

class HostBackend final : public Backend {
 public:
  /// @param transport outlives the backend
  /// @param poison fills buffers with NaN when they begin and end, so that what is read before it is written, or after its
  ///   end, shows
  HostBackend(const StepProgram& program, Transport& transport, bool poison = false);

  /// Bytes that this rank sent since the last call of clear_sent.
  const SentBytes& sent() const { return sent_; }
  void clear_sent() { sent_.clear(); }

  std::byte* allocate_arena(Bytes size) override;
  void set(const Hyperparameters& hyperparameters) override { hyperparameters_ = hyperparameters; }
  void launch(const Operation& operation) override;
  void communicate(const Operation& operation, const Collective& collective) override;
  void copy_to_device(const Operation& operation, std::span<const std::byte> from) override;
  void copy_to_host(const Operation& operation) override;
  void wait_for(Lane) override {}
  void begin_buffer(const Operand& buffer) override;
  void end_buffer(const Operand& buffer) override;
  void join_lanes() override {}
  void write(const Operand& to, std::span<const std::byte> from) override;
  void read(const Operand& from, std::span<std::byte> to) override;
  void clear(const Operand& operand) override;

 private:
  const StepProgram& program_;
  Transport& transport_;
  const bool poison_;
  std::unique_ptr<std::byte[]> arena_;
  Hyperparameters hyperparameters_;
  SentBytes sent_;
};

}  // namespace plimsoll
