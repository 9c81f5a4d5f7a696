// Reading PyTorch's memory snapshot (planner/cli/allocator_record.hpp).  With the stack of every event it runs to hundreds of
// megabytes, so it is read in one pass, and of each stack the innermost Python frame alone is kept.
//
// The counters fall when a free is requested ("free_requested"), whatever stream still uses the block, so the events
// "free_completed" are passed over, as are those of segments.  What was alive before the first event is what is alive at the
// end ("active_allocated" blocks), minus the allocations, plus the frees.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "planner/cli/allocator_record.hpp"
#include "planner/spec/document.hpp"

namespace plimsoll {
namespace {

/// What an object or array of the file is.
enum class Part : std::uint8_t { root, segments, segment, blocks, block, devices, device, event, frames, frame, other };

/// The part that stands in `outer` under `key`.
Part part_in(Part outer, std::string_view key) {
  switch (outer) {
    case Part::root: return key == "segments" ? Part::segments : key == "device_traces" ? Part::devices : Part::other;
    case Part::segments: return Part::segment;
    case Part::segment: return key == "blocks" ? Part::blocks : Part::other;
    case Part::blocks: return Part::block;
    case Part::devices: return Part::device;
    case Part::device: return Part::event;
    case Part::event: return key == "frames" ? Part::frames : Part::other;
    case Part::frames: return Part::frame;
    case Part::block:
    case Part::frame:
    case Part::other: return Part::other;
  }
  return Part::other;
}

struct SnapshotEvent {
  std::string action;
  std::int64_t address = 0, size = -1;
  std::string label;
};

struct Device {
  std::vector<AllocatorEvent> events;
  std::unordered_map<std::int64_t, std::pair<std::int64_t, std::int64_t>> live;  ///< address -> id, bytes
  std::int64_t next_id = 0;
  std::int64_t grown = 0;  ///< allocations minus frees
};

/// Takes the file's values one by one, as the JSON library's parser finds them.
class SnapshotReader {
 public:
  using Number = std::int64_t;

  std::vector<Device> devices;
  std::vector<std::string> labels;
  std::vector<std::int64_t> live_at_end;  ///< by device
  std::size_t error_at = 0;
  std::string error;
  bool has_traces = false, has_segments = false;

  bool null() { return true; }
  bool boolean(bool) { return true; }
  bool number_integer(std::int64_t value) { return number(value); }
  bool number_unsigned(std::uint64_t value) { return number(static_cast<std::int64_t>(value)); }
  bool number_float(double, const std::string&) { return true; }
  bool binary(nlohmann::json::binary_t&) { return true; }
  bool key(std::string& name) {
    key_ = name;
    return true;
  }
  bool start_object(std::size_t) { return open(); }
  bool start_array(std::size_t) { return open(); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool string(std::string& value) {
    if (parts_.empty()) return true;
    if (parts_.back() == Part::event && key_ == "action") event_.action = value;
    if (parts_.back() == Part::block && key_ == "state") block_in_use_ = value == "active_allocated";
    if (parts_.back() == Part::frame && key_ == "filename") frame_file_ = value;
    if (parts_.back() == Part::frame && key_ == "name") frame_function_ = value;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& exception) {
    error_at = position;
    error = exception.what();
    return false;
  }

 private:
  bool number(std::int64_t value) {
    if (parts_.empty()) return true;
    switch (parts_.back()) {
      case Part::event:
        if (key_ == "addr") event_.address = value;
        if (key_ == "size") event_.size = value;
        break;
      case Part::segment:
        if (key_ == "device") segment_device_ = value;
        break;
      case Part::block:
        if (key_ == "size") block_size_ = value;
        break;
      case Part::frame:
        if (key_ == "line") frame_line_ = value;
        break;
      default: break;
    }
    return true;
  }

  /// Of sizes that a damaged file may hold.
  static std::int64_t sum(std::int64_t a, std::int64_t b) {
    return std::min(a + std::clamp<std::int64_t>(b, 0, most_allocator_bytes), most_allocator_bytes);
  }

  bool open() {
    const Part part = parts_.empty() ? Part::root : part_in(parts_.back(), key_);
    parts_.push_back(part);
    has_traces |= part == Part::devices;
    has_segments |= part == Part::segments;
    if (part == Part::device) devices.emplace_back();
    if (part == Part::event) event_ = {};
    if (part == Part::segment) segment_device_ = segment_live_ = 0;
    if (part == Part::block) {
      block_size_ = 0;
      block_in_use_ = false;
    }
    if (part == Part::frame) {
      frame_file_.clear();
      frame_function_.clear();
      frame_line_ = 0;
    }
    return true;
  }

  bool close() {
    const Part part = parts_.back();
    parts_.pop_back();
    if (part == Part::event) finish_event();
    if (part == Part::frame) finish_frame();
    if (part == Part::block && block_in_use_) segment_live_ = sum(segment_live_, block_size_);
    if (part == Part::segment && segment_device_ >= 0 && segment_device_ < 1024) {
      const auto device = static_cast<std::size_t>(segment_device_);
      if (live_at_end.size() <= device) live_at_end.resize(device + 1);
      live_at_end[device] = sum(live_at_end[device], segment_live_);
    }
    return true;
  }

  /// Frames come innermost first; those of C++ are passed over.
  void finish_frame() {
    if (!event_.label.empty() || frame_file_.size() < 3 || frame_file_.substr(frame_file_.size() - 3) != ".py") return;
    const std::size_t slash = frame_file_.rfind('/');
    event_.label = fmt::format("{}:{}:{}", frame_file_.substr(slash == std::string::npos ? 0 : slash + 1), frame_line_,
                               frame_function_);
  }

  std::int32_t label_index() {
    if (event_.label.empty()) event_.label = "autograd";
    const auto [found, is_new] = label_ids_.emplace(event_.label, static_cast<std::int32_t>(labels.size()));
    if (is_new) labels.push_back(event_.label);
    return found->second;
  }

  void finish_event() {
    if (devices.empty() || event_.size < 0 || event_.size > most_allocator_bytes) return;
    if (devices.back().events.size() > most_allocator_events) return;
    Device& device = devices.back();
    AllocatorEvent event;
    event.bytes = event_.size;
    event.is_alloc = event_.action == "alloc";
    if (event.is_alloc) {
      event.id = device.next_id++;
      event.label = label_index();
      device.live[event_.address] = {event.id, event.bytes};
      device.grown += event.bytes;
    } else if (event_.action == "free_requested" || event_.action == "free") {
      const auto found = device.live.find(event_.address);
      if (found != device.live.end()) {
        event.id = found->second.first;
        device.live.erase(found);
      }
      device.grown -= event.bytes;
    } else {
      return;
    }
    device.events.push_back(event);
  }

  std::vector<Part> parts_;
  std::string key_;
  SnapshotEvent event_;
  std::unordered_map<std::string, std::int32_t> label_ids_;
  std::string frame_file_, frame_function_;
  std::int64_t frame_line_ = 0;
  std::int64_t segment_device_ = 0, segment_live_ = 0, block_size_ = 0;
  bool block_in_use_ = false;
};

Diagnostic error_at(const std::shared_ptr<const SourceFile>& file, std::size_t position, const char* code,
                    std::string message, std::string help = {}) {
  return make_error(code, std::move(message), std::move(help), place_in(file, position, position + 1));
}

}  // namespace

Result<AllocatorRecord> read_snapshot(const std::shared_ptr<const SourceFile>& file) {
  if (!file->text.empty() && file->text.front() == '\x80') {
    return error_at(
        file, 0, "snapshot.json", "this is a pickle, as torch.cuda.memory._dump_snapshot() writes it",
        R"(json.dump(pickle.load(open("snapshot.pickle", "rb")), open("snapshot.json", "w")) makes JSON of it)");
  }
  SnapshotReader reader;
  if (!nlohmann::json::sax_parse(file->text, &reader)) {
    const bool cut = reader.error_at >= file->text.size();
    return error_at(file, reader.error_at > 0 ? reader.error_at - 1 : 0, "snapshot.json",
                    cut ? "the file ends here, in the middle of the snapshot" : "this is no JSON",
                    R"(json.dump(torch.cuda.memory._snapshot(), open("snapshot.json", "w")) writes one)");
  }
  if (!reader.has_traces || !reader.has_segments) {
    return error_at(file, 0, "snapshot.form",
                    R"(this is no memory snapshot: it has no "segments" or no "device_traces")",
                    "a trace with \"events\" is read by --allocator-trace");
  }
  std::size_t most = 0;
  for (std::size_t i = 0; i < reader.devices.size(); ++i) {
    if (reader.devices[i].events.size() > reader.devices[most].events.size()) most = i;
  }
  if (reader.devices.empty() || reader.devices[most].events.empty()) {
    return error_at(file, 0, "snapshot.empty", "the snapshot has no allocations in \"device_traces\"",
                    "call torch.cuda.memory._record_memory_history() before the step");
  }
  if (reader.devices[most].events.size() > most_allocator_events) {
    return error_at(file, 0, "snapshot.size", fmt::format("more than {} allocations and frees", most_allocator_events),
                    "call _record_memory_history() right before the step that is to be compared");
  }
  AllocatorRecord record;
  record.name = file->name;
  record.labels = std::move(reader.labels);
  record.events = std::move(reader.devices[most].events);
  const std::int64_t live = most < reader.live_at_end.size() ? reader.live_at_end[most] : 0;
  record.live_before = Bytes(std::max<std::int64_t>(0, live - reader.devices[most].grown));
  return record;
}

}  // namespace plimsoll
