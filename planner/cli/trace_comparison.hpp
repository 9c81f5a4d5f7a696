// Which tensors does a real step allocate that the program lacks, and the other way round?  Both lists of allocations are
// aligned by size in their order (planner/cli/align.hpp); what has no partner is told by name, and where partners live for
// a different time, by how many allocations.
#pragma once

#include <string>
#include <vector>

#include "planner/cli/allocator_record.hpp"
#include "planner/step/program.hpp"

namespace plimsoll {

/// The allocations and frees of the program's steady step, micro-batches of an accumulation one by one.
struct ProgramRecord {
  AllocatorRecord record;            ///< labels are the buffers' names
  std::vector<BufferId> buffers;     ///< of each event
  std::vector<std::string> phases;   ///< of the job
  std::vector<std::uint16_t> phase;  ///< of each event: index into phases
};

/// @param steps how many steady steps in a row
ProgramRecord record_of(const RankProgram& program, int steps = 1);

/// Equal tensors that one of the sides has alone, or holds for another time.
struct TensorGroup {
  std::string name;     ///< of the buffer, or the trace's label
  std::string formula;  ///< of the buffer; for the trace: after which tensor of the program it comes
  Bytes bytes;          ///< of the largest; routing gives equal tensors different sizes
  Bytes least, total;   ///< of the smallest, of all
  int count = 0;
  int first_layer = -1, last_layer = -1;
  std::string phase;                  ///< of the first of them
  int shift_low = 0, shift_high = 0;  ///< lifetimes: by how many allocations the trace frees later (< 0: earlier)
};

struct PeakOfRecord {
  Bytes bytes;
  std::size_t event = 0;
  std::string tensor;  ///< whose allocation reached it
  std::string phase;   ///< of the program; of the trace: by the allocation aligned before it
};

struct TraceComparison {
  Bytes threshold;
  int program_count = 0, trace_count = 0, matched = 0;  ///< allocations of at least the threshold
  Bytes program_bytes, trace_bytes, matched_bytes;      ///< their sums
  Bytes program_live, trace_live;                       ///< when the step begins
  PeakOfRecord program_peak, trace_peak;
  std::vector<TensorGroup> only_in_program, only_in_trace, lifetimes;
  /// Alive at the one side's peak, and with no partner alive at the other's.
  std::vector<TensorGroup> only_at_program_peak, only_at_trace_peak;

  /// Share of the bytes that have a partner: of the side that has more.
  double shared() const;
  /// (program - trace) / trace, of the peaks.
  double peak_error() const { return program_peak.bytes / trace_peak.bytes - 1; }
};

TraceComparison compare(const RankProgram& program, const ProgramRecord& mine, const AllocatorRecord& trace,
                        Bytes threshold);

/// Both lists of events side by side where they differ, frees too: lines that begin with "-" are the program's alone, with
/// "+" the trace's.
std::string list_differences(const ProgramRecord& mine, const AllocatorRecord& trace, Bytes threshold);

/// "model.layers.*.mlp.up_proj.weight": the same tensor of all layers.
std::string without_layer(std::string name);

std::string comparison_json(const TraceComparison& comparison);

}  // namespace plimsoll
