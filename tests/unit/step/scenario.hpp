// Scenarios from short texts, and what a recorded program holds, for the tests of this folder.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "planner/spec/document.hpp"
#include "planner/spec/read_cluster.hpp"
#include "planner/spec/read_model.hpp"
#include "planner/spec/read_plan.hpp"
#include "planner/spec/scenario.hpp"
#include "planner/step/program.hpp"

namespace plimsoll {

inline std::string words_of(const Diagnostics& diagnostics) {
  std::string text;
  for (const Diagnostic& diagnostic : diagnostics) text += format(diagnostic);
  return text;
}

/// @param config a config.json
/// @param sets the plan, "zero.stage=2" and so on
/// @throws std::runtime_error if any of it has errors
inline Scenario make_scenario(std::string_view config, const std::vector<std::string>& sets,
                              std::string_view cluster = "8xh200") {
  const auto file = std::make_shared<SourceFile>(SourceFile{"config.json", std::string(config)});
  const Result<Document> document = parse_document(file);
  if (!document) throw std::runtime_error(words_of(document.diagnostics()));
  const Result<ModelSpec> model = read_model(*document, "test");
  if (!model) throw std::runtime_error(words_of(model.diagnostics()));
  Scenario scenario;
  scenario.model = *model;
  const Result<ClusterSpec> read_cluster = load_cluster(cluster);
  if (!read_cluster) throw std::runtime_error(words_of(read_cluster.diagnostics()));
  scenario.cluster = *read_cluster;
  PlanContext context;
  context.overrides = sets;
  context.cluster_world = scenario.cluster.world();
  context.model = &scenario.model;
  const Result<Plan> plan = read_plan(nullptr, context);
  if (!plan) throw std::runtime_error(words_of(plan.diagnostics()));
  scenario.plan = *plan;
  return scenario;
}

/// The ops of a phase, from its first span to its last.  @throws std::runtime_error if there is none of that name
inline std::pair<OpId, OpId> phase(const RankProgram& program, std::string_view name) {
  std::pair<OpId, OpId> ops{~OpId{0}, 0};
  for (const PhaseSpan& span : program.phases) {
    if (span.name != name) continue;
    ops.first = std::min(ops.first, span.first);
    ops.second = span.end;
  }
  if (ops.second == 0) throw std::runtime_error("no phase " + std::string(name));
  return ops;
}

/// Buffers allocated in ops [first, end).
inline std::vector<const BufferDecl*> allocated(const RankProgram& program, std::pair<OpId, OpId> ops) {
  std::vector<const BufferDecl*> result;
  for (OpId id = ops.first; id < ops.second; ++id) {
    if (const auto* alloc = std::get_if<Alloc>(&program.ops[id].action)) {
      result.push_back(&program.buffers[alloc->buffer]);
    }
  }
  return result;
}

/// Sizes of the buffers of that name allocated in ops [first, end), in order.
inline std::vector<std::int64_t> sizes_of(const RankProgram& program, std::pair<OpId, OpId> ops,
                                          std::string_view name) {
  std::vector<std::int64_t> sizes;
  for (const BufferDecl* buffer : allocated(program, ops)) {
    if (buffer->name == name) sizes.push_back(buffer->size.count);
  }
  return sizes;
}

/// Bytes alive, as requested, on the GPU (or on the host, pinned or not).
struct Live {
  std::map<Category, std::int64_t> gpu;
  std::int64_t pinned = 0, pageable = 0;
  std::int64_t gpu_total() const {
    std::int64_t sum = 0;
    for (const auto& [category, bytes] : gpu) sum += bytes;
    return sum;
  }
};

/// What is alive after op `end` - 1, and the highest totals since `first`.
struct LiveRange {
  Live at_end;
  std::int64_t gpu_peak = 0, pinned_peak = 0, pageable_peak = 0;
};

inline LiveRange live(const RankProgram& program, std::pair<OpId, OpId> ops) {
  LiveRange range;
  for (OpId id = 0; id < ops.second; ++id) {
    const auto* alloc = std::get_if<Alloc>(&program.ops[id].action);
    const auto* free = std::get_if<Free>(&program.ops[id].action);
    if (alloc || free) {
      const BufferDecl& buffer = program.buffers[alloc ? alloc->buffer : free->buffer];
      const std::int64_t change = alloc ? buffer.size.count : -buffer.size.count;
      if (buffer.pool == Lane::host) {
        (buffer.pinned ? range.at_end.pinned : range.at_end.pageable) += change;
      } else {
        range.at_end.gpu[buffer.category] += change;
      }
    }
    if (id < ops.first) continue;
    range.gpu_peak = std::max(range.gpu_peak, range.at_end.gpu_total());
    range.pinned_peak = std::max(range.pinned_peak, range.at_end.pinned);
    range.pageable_peak = std::max(range.pageable_peak, range.at_end.pageable);
  }
  return range;
}

/// A collective of the steady step, in elements.
struct Sent {
  CollectiveKind kind;
  DType dtype;
  GroupId group;
  std::int64_t elements;
  bool operator==(const Sent&) const = default;
};

/// Collectives in ops [first, end) of at least `least` elements, in order.
inline std::vector<Sent> collectives(const RankProgram& program, std::pair<OpId, OpId> ops, std::int64_t least = 2) {
  std::vector<Sent> result;
  for (OpId id = ops.first; id < ops.second; ++id) {
    if (const auto* c = std::get_if<Collective>(&program.ops[id].action)) {
      const std::int64_t elements = c->full_size.count / size_of(c->dtype);
      if (elements >= least) result.push_back({c->kind, c->dtype, c->group, elements});
    }
  }
  return result;
}

inline std::pair<OpId, OpId> steady(const RankProgram& program) { return {program.steady_first, program.steady_end}; }

}  // namespace plimsoll
