// Which kernel runs a routine on the host (runtime/host/host_backend.hpp).
#include "runtime/host/host_backend.hpp"

#include <fmt/format.h>

#include <cstring>
#include <new>

#include "planner/base/check.hpp"
#include "planner/base/format.hpp"
#include "planner/base/machine_error.hpp"
#include "runtime/host/kernels.hpp"

namespace plimsoll {

namespace {

/// True if any operand is bf16: then the arithmetic is fp64 (runtime/host/matrix.hpp).
bool is_emulated(const Operation& op) {
  for (const auto operands : {op.reads, op.writes}) {
    for (const Operand& operand : operands) {
      if (operand.dtype == DType::bf16) return true;
    }
  }
  return false;
}

template <class S>
void launch_with(const Operation& op, const Hyperparameters& hyperparameters) {
  switch (op.call().routine) {
    case Routine::none: CHECK(false, "a launch without a routine");
    case Routine::copy: return host::copy(op);
    case Routine::add: return host::add<S>(op);
    case Routine::fill_zero: return host::fill_zero(op);
    case Routine::product: return host::product<S>(op);
    case Routine::grouped_product: return host::grouped_product<S>(op);
    case Routine::embedding: return host::embedding<S>(op);
    case Routine::embedding_backward: return host::embedding_backward<S>(op);
    case Routine::norm: return host::norm<S>(op);
    case Routine::norm_backward: return host::norm_backward<S>(op);
    case Routine::rotary: return host::rotary<S>(op);
    case Routine::head_norm_rotary: return host::head_norm_rotary<S>(op);
    case Routine::head_norm_rotary_backward: return host::head_norm_rotary_backward<S>(op);
    case Routine::attention: return host::attention<S>(op);
    case Routine::attention_backward: return host::attention_backward<S>(op);
    case Routine::swiglu: return host::swiglu<S>(op);
    case Routine::swiglu_backward: return host::swiglu_backward<S>(op);
    case Routine::cross_entropy: return host::cross_entropy<S>(op);
    case Routine::route: return host::route<S>(op);
    case Routine::route_backward: return host::route_backward<S>(op);
    case Routine::scatter_rows: return host::scatter_rows<S>(op);
    case Routine::regroup: return host::regroup(op);
    case Routine::gather_rows: return host::gather_rows<S>(op);
    case Routine::accumulate: return host::accumulate(op);
    case Routine::adamw: return host::adamw(op, hyperparameters);
  }
}

}  // namespace

HostBackend::HostBackend(const StepProgram& program, Transport& transport, bool poison)
    : program_(program), transport_(transport), poison_(poison) {}

std::byte* HostBackend::allocate_arena(Bytes size) {
  arena_.reset(new (std::nothrow) std::byte[static_cast<std::size_t>(size.count)]);
  if (!arena_) throw MachineError(fmt::format("the host has no room for an arena of {}", format(size)));
  return arena_.get();
}

void HostBackend::launch(const Operation& operation) {
  if (is_emulated(operation)) {
    launch_with<double>(operation, hyperparameters_);
  } else {
    launch_with<float>(operation, hyperparameters_);
  }
}

void HostBackend::communicate(const Operation& operation, const Collective& collective) {
  const Group& group = program_.groups[collective.group];
  run_collective(operation, collective, members_of(transport_.rank(), group.size, group.stride), transport_,
                 sent_[{collective.kind, collective.group}]);
}

void HostBackend::copy_to_device(const Operation& operation, std::span<const std::byte> from) {
  write(operation.writes[0], from);
}

void HostBackend::copy_to_host(const Operation& operation) {
  if (operation.writes.empty()) return;  // counts are read where they stand
  const Operand& from = operation.reads[0];
  read(from, {operation.writes[0].data, static_cast<std::size_t>(from.numel * size_of(from.dtype))});
}

void HostBackend::begin_buffer(const Operand& buffer) {
  if (poison_) std::memset(buffer.data, 0xff, static_cast<std::size_t>(buffer.numel * size_of(buffer.dtype)));
}
void HostBackend::end_buffer(const Operand& buffer) { begin_buffer(buffer); }

void HostBackend::write(const Operand& to, std::span<const std::byte> from) {
  CHECK(static_cast<std::int64_t>(from.size()) <= to.numel * size_of(to.dtype), "a copy beyond its buffer");
  std::memcpy(to.data, from.data(), from.size());
}
void HostBackend::read(const Operand& from, std::span<std::byte> to) {
  CHECK(static_cast<std::int64_t>(to.size()) <= from.numel * size_of(from.dtype), "a copy beyond its buffer");
  std::memcpy(to.data(), from.data, to.size());
}

void HostBackend::clear(const Operand& operand) {
  std::memset(operand.data, 0, static_cast<std::size_t>(operand.numel * size_of(operand.dtype)));
}

}  // namespace plimsoll
