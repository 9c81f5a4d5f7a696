// What did a real process allocate and free?  A record of its caching allocator in either of two forms, as JSON, plain or
// compressed by gzip.
//
// A trace of one step:  {"live_before": bytes, "labels": ["file:line:function", ...], "events": [[1, bytes, id, label],
// [-1, bytes, id, -1], ...]}: allocations and frees in order, ids paired, id -1 for what was allocated before, bytes as
// requested.
//
// PyTorch's own memory snapshot, which two lines of Python write around the step that is to be looked at:
//
//   torch.cuda.memory._record_memory_history(context="alloc", stacks="python")              # before it
//   json.dump(torch.cuda.memory._snapshot(), open("snapshot.json", "w"))                    # after it
//
// From "device_traces" (of the device with most of them) come the events, from "segments" what was alive.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "planner/base/diagnostic.hpp"
#include "planner/base/quantity.hpp"

namespace plimsoll {

struct AllocatorEvent {
  static constexpr std::int32_t no_label = -1;
  static constexpr std::int64_t before = -1;  ///< id of what was allocated before the record began

  bool is_alloc = true;
  std::int32_t label = no_label;  ///< index into AllocatorRecord::labels
  std::int64_t bytes = 0;         ///< as requested
  std::int64_t id = before;       ///< the same for an allocation and its free
};

/// No device holds more; with most_allocator_events of them, sums stay within 64 bits.
inline constexpr std::int64_t most_allocator_bytes = std::int64_t{1} << 42;
inline constexpr std::size_t most_allocator_events = std::size_t{1} << 20;

struct AllocatorRecord {
  std::string name;  ///< of the file
  Bytes live_before;
  std::vector<std::string> labels;  ///< "file:line:function", innermost Python frame
  std::vector<AllocatorEvent> events;

  const std::string& label_of(const AllocatorEvent& event) const;
};

/// Errors: trace.form, .event, .pair (a free without its allocation), and those of the JSON reader.  A record may come with
/// errors: the events that are in order are there all the same.
Result<AllocatorRecord> read_allocator_trace(const std::shared_ptr<const SourceFile>& file);

/// Errors: snapshot.json, .form, .empty, .size.
Result<AllocatorRecord> read_snapshot(const std::shared_ptr<const SourceFile>& file);

inline constexpr std::size_t unpacked_limit = std::size_t{2} << 30;  ///< bytes of a file that is read as it comes

/// Reads a file, and unpacks it if it is compressed by gzip.  Error: trace.gzip, where the unpacking broke off.
/// @param limit bytes beyond which it breaks off; document_size_limit for what becomes a Document
/// @throws MachineError if it is missing or unreadable
Result<std::shared_ptr<const SourceFile>> load_unpacked(const std::string& path, std::size_t limit = unpacked_limit);

}  // namespace plimsoll
