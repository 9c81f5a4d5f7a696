// Scenario -> step program (planner/step/build_step.hpp).
#include "planner/step/build_step.hpp"

#include <fmt/format.h>
#include <bit>

#include <array>

#include "planner/step/engines/engines.hpp"
#include "planner/step/groups.hpp"
#include "planner/step/model_flops.hpp"

namespace plimsoll {

namespace {

/// FNV-1a, 64 bits, byte by byte: h <- (h xor byte) p.
class Hash {
 public:
  /// Eight bytes, the lowest first; the zeros above the highest that is set are one multiplication by a power of p.
  void add(std::uint64_t value) {
    std::size_t bytes = 0;
    for (; value != 0; value >>= 8, ++bytes) state_ = (state_ ^ (value & 0xff)) * prime;
    state_ *= powers[8 - bytes];
  }
  void add(const char* text) {
    for (; *text; ++text) state_ = (state_ ^ static_cast<unsigned char>(*text)) * prime;
    add(std::uint64_t{0});
  }
  std::uint64_t value() const { return state_; }

 private:
  static constexpr std::uint64_t prime = 0x100000001b3ULL;
  static constexpr std::array<std::uint64_t, 9> powers = [] {
    std::array<std::uint64_t, 9> result{1};
    for (std::size_t i = 1; i < result.size(); ++i) result[i] = result[i - 1] * prime;
    return result;
  }();
  std::uint64_t state_ = 0xcbf29ce484222325ULL;
};

/// Sizes that routing moves from step to step are no part of the structure.
bool routed(const BufferDecl& buffer) {
  for (int i = 0; i < buffer.shape.rank; ++i) {
    const Symbol symbol = buffer.shape.dim(i).symbol;
    if (symbol == Symbol::rows || symbol == Symbol::padded_rows) return true;
  }
  return false;
}

/// The routing moves the sizes of routed buffers from rank to rank, so that they are no part of the digest; how much room the
/// reference runtime makes for dropless rows is the plan's own word.  None where no row comes from another rank.
double stated_room(const Scenario& scenario) {
  const Plan& plan = scenario.plan;
  const bool bounded = plan.engine == Engine::plimsoll && plan.expert_parallel > 1 && !plan.moe.drop_tokens;
  return bounded ? plan.moe.capacity_factor : 0;
}

std::string digest_of(const StepProgram& program, double room) {
  Hash hash;
  if (room > 0) hash.add(std::bit_cast<std::uint64_t>(room));
  for (const Group& group : program.groups) {
    hash.add(group.name.c_str());
    hash.add(static_cast<std::uint64_t>(group.size));
    hash.add(static_cast<std::uint64_t>(group.stride));
  }
  hash.add(static_cast<std::uint64_t>(program.gradient_accumulation));
  const RankProgram& rank = program.classes.front().program;
  for (OpId id = rank.steady_first; id < rank.steady_end; ++id) {
    const Op& op = rank.ops[id];
    hash.add(op.action.index() << 8 | static_cast<std::uint64_t>(op.lane));
    if (const auto* alloc = std::get_if<Alloc>(&op.action)) {
      const BufferDecl& buffer = rank.buffers[alloc->buffer];
      hash.add(buffer.name);
      if (!routed(buffer)) hash.add(static_cast<std::uint64_t>(buffer.size.count));
    } else if (const auto* collective = std::get_if<Collective>(&op.action)) {
      hash.add(static_cast<std::uint64_t>(collective->kind) << 16 | collective->group);
    } else if (const auto* compute = std::get_if<Compute>(&op.action)) {
      hash.add(static_cast<std::uint64_t>(rank.kernels[compute->kernel].kind));
    }
  }
  return fmt::format("{:016x}", hash.value());
}

}  // namespace

StepProgram build_unstamped(const Scenario& scenario, int rank) {
  StepProgram program;
  program.groups = groups_of(scenario);
  program.world_size = scenario.plan.world_size;
  program.gradient_accumulation = scenario.plan.gradient_accumulation;
  program.tokens_per_step_per_rank = scenario.plan.tokens() * scenario.plan.gradient_accumulation;
  program.model_flops_per_step_per_rank = model_flops(scenario);
  RankClass& ranks = program.classes.emplace_back();
  ranks.ranks = scenario.plan.world_size;
  ranks.example_rank = rank;
  switch (scenario.plan.engine) {
    case Engine::deepspeed: build_deepspeed(scenario, rank, ranks.program); break;
    case Engine::fsdp2: build_fsdp2(scenario, rank, ranks.program); break;
    case Engine::ddp: build_ddp(scenario, rank, ranks.program); break;
    case Engine::plimsoll: build_plimsoll(scenario, rank, ranks.program); break;
  }
  return program;
}

void stamp(const Scenario& scenario, StepProgram& program) {
  program.digest = digest_of(program, stated_room(scenario));
}

StepProgram build_step(const Scenario& scenario, int rank) {
  StepProgram program = build_unstamped(scenario, rank);
  stamp(scenario, program);
  return program;
}

}  // namespace plimsoll
