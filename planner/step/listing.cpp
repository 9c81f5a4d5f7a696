// Prints a step program (planner/step/listing.hpp).
#include "planner/step/listing.hpp"

#include <fmt/format.h>

#include <iterator>
#include <variant>

namespace plimsoll {
namespace {

template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

std::string shape_of(const BufferDecl& buffer) {
  std::string text;
  for (int i = 0; i < buffer.shape.rank; ++i) text += fmt::format("{}{}", i > 0 ? "x" : "", buffer.shape.dim(i).size);
  return text.empty() ? "scalar" : text;
}

std::string kernel_in_words(const Kernel& kernel) {
  const std::string name = fmt::format("{} {}", name_of(kernel.kind), name_of(kernel.dtype));
  const bool matrix = kernel.kind == KernelKind::gemm || kernel.kind == KernelKind::grouped_gemm ||
                      kernel.kind == KernelKind::attention_forward || kernel.kind == KernelKind::attention_backward;
  const std::string sizes = matrix ? fmt::format("m {} n {} k {} batch {}", kernel.m, kernel.n, kernel.k, kernel.batch)
                                   : fmt::format("{} elements, {} B", kernel.elements, kernel.bytes.count);
  return fmt::format("{} {}{}", name, sizes, kernel.launches == 1 ? "" : fmt::format(", {} launches", kernel.launches));
}

std::string group_name(const StepProgram& program, GroupId group) {
  return group < program.groups.size() ? program.groups[group].name : fmt::format("group {}", group);
}

std::string buffer_in_words(const BufferDecl& buffer) {
  const char* pool = buffer.pool == Lane::compute ? "" : name_of(buffer.pool);
  return fmt::format("{} B {} {} {} {}{}{}{}", buffer.size.count, name_of(buffer.category), buffer.name,
                     shape_of(buffer), name_of(buffer.dtype), *pool != '\0' ? " pool " : "", pool,
                     buffer.pinned ? " pinned" : "");
}

std::string action_in_words(const StepProgram& program, const RankProgram& rank, const Action& action) {
  return std::visit(
      Overloaded{
          [&](const Compute& a) { return kernel_in_words(rank.kernels[a.kernel]); },
          [&](const Collective& a) {
            const std::string received =
                a.receive_size == a.full_size ? "" : fmt::format(", receives {} B", a.receive_size.count);
            return fmt::format("{} {} {} B {}{}{}", name_of(a.kind), group_name(program, a.group), a.full_size.count,
                               name_of(a.dtype), received, a.carrier == Carrier::copy_engines ? " by copies" : "");
          },
          [&](const Send& a) { return fmt::format("send {} {} B", group_name(program, a.group), a.size.count); },
          [&](const Receive& a) { return fmt::format("receive {} {} B", group_name(program, a.group), a.size.count); },
          [&](const HostCopy& a) {
            return fmt::format("{} {} B{}", a.to_device ? "host_to_device" : "device_to_host", a.size.count,
                               a.pinned ? " pinned" : "");
          },
          [&](const HostWork& a) {
            const std::string bytes = a.bytes.count > 0 ? fmt::format(", {} B", a.bytes.count) : "";
            return fmt::format("host {} x {}{}", name_of(a.kind), a.count, bytes);
          },
          [&](const HostSync& a) { return fmt::format("sync {}", name_of(a.waits_for)); },
          [&](const Alloc& a) { return "alloc " + buffer_in_words(rank.buffers[a.buffer]); },
          [&](const Free& a) {
            const BufferDecl& buffer = rank.buffers[a.buffer];
            return fmt::format("free  {} B {} {}", buffer.size.count, name_of(buffer.category), buffer.name);
          },
          [&](const EmptyCache&) { return std::string("empty_cache"); },
      },
      action);
}

bool is_memory(const Op& op) {
  return std::holds_alternative<Alloc>(op.action) || std::holds_alternative<Free>(op.action);
}

void append_line(fmt::memory_buffer& out, const StepProgram& program, const RankProgram& rank, OpId id) {
  const Op& op = rank.ops[id];
  const std::string layer = op.layer < 0 ? "-" : fmt::format("L{}", op.layer);
  fmt::format_to(std::back_inserter(out), "{:<8} {:<4} m{} {}", name_of(op.lane), layer, op.micro_batch,
                 action_in_words(program, rank, op.action));
  if (*op.role != '\0' && !is_memory(op)) fmt::format_to(std::back_inserter(out), "  [{}]", op.role);
  const auto waits = rank.waits(op);
  for (std::size_t i = 0; i < waits.size(); ++i)
    fmt::format_to(std::back_inserter(out), "{} -{}", i == 0 ? "  after" : "", id - waits[i]);
}

}  // namespace

std::string line_of(const StepProgram& program, const RankProgram& rank, OpId op) {
  fmt::memory_buffer out;
  append_line(out, program, rank, op);
  return fmt::to_string(out);
}

std::string list_program(const StepProgram& program, const RankClass& ranks, const ListingFilter& filter) {
  const RankProgram& rank = ranks.program;
  fmt::memory_buffer out;
  const auto to = std::back_inserter(out);
  fmt::format_to(to, "digest {}\n", program.digest);
  fmt::format_to(to, "rank {} of {}, accumulation {}\n", ranks.example_rank, program.world_size,
                 program.gradient_accumulation);
  for (const Group& group : program.groups)
    if (group.size > 1) fmt::format_to(to, "group {}: {} ranks, {} apart\n", group.name, group.size, group.stride);
  for (const PhaseSpan& phase : rank.phases) {
    if (!filter.phase.empty() && filter.phase != phase.name) continue;
    fmt::format_to(to, "\nphase {}\n", phase.name);
    for (OpId id = phase.first; id < phase.end; ++id) {
      for (const Repeat& repeat : rank.repeats) {
        if (id == repeat.first) fmt::format_to(to, "repeat {} times\n", repeat.count);
        if (id == repeat.end && id > phase.first) fmt::format_to(to, "end of repeat\n");
      }
      const Op& op = rank.ops[id];
      if (filter.layer && op.layer != *filter.layer) continue;
      if (!filter.memory && is_memory(op)) continue;
      append_line(out, program, rank, id);
      out.push_back('\n');
    }
  }
  return fmt::to_string(out);
}

}  // namespace plimsoll
