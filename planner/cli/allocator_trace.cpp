// Reading a trace of one step's allocations (planner/cli/allocator_record.hpp).
#include <fmt/format.h>
#include <zlib.h>

#include <array>
#include <unordered_map>

#include "planner/base/format.hpp"
#include "planner/base/machine_error.hpp"
#include "planner/cli/allocator_record.hpp"
#include "planner/spec/document.hpp"

namespace plimsoll {
namespace {

/// Broken events that are told one by one.
constexpr int most_told = 10;

class TraceReader {
 public:
  explicit TraceReader(std::string name) { record_.name = std::move(name); }

  Result<AllocatorRecord> read(const Node& root) {
    const Node* events = root.find("events");
    if (events == nullptr || !events->is_array()) {
      error(root, "trace.form", "this is no allocator trace: it has no array \"events\"",
            "PyTorch's own snapshot (segments, device_traces) is read by --snapshot");
      return std::move(diagnostics_);
    }
    read_live(root);
    read_labels(root);
    if (events->items().size() > most_allocator_events) {
      error(*events, "trace.form", fmt::format("more than {} events", most_allocator_events), "a trace holds one step");
      return std::move(diagnostics_);
    }
    for (const Node* event : events->items()) read_event(*event);
    if (untold_ > 0) error(*events, "trace.event", fmt::format("events as broken as these: {} more", untold_), {});
    if (record_.events.empty() && !has_errors(diagnostics_))
      error(*events, "trace.form", "the trace has no events", {});
    if (record_.events.empty()) return std::move(diagnostics_);
    return {std::move(record_), std::move(diagnostics_)};
  }

 private:
  void error(const Node& node, const char* code, std::string message, std::string help) {
    diagnostics_.push_back(make_error(code, std::move(message), std::move(help), node.place()));
  }

  void broken(const Node& node, const char* code, std::string message) {
    if (++told_ <= most_told) {
      error(node, code, std::move(message), "an event is [1 or -1, bytes, id, label]");
    } else {
      ++untold_;
    }
  }

  void read_live(const Node& root) {
    const Node* live = root.find("live_before");
    if (live != nullptr && live->kind() == Node::Kind::integer && live->as_int() >= 0 &&
        live->as_int() <= most_allocator_bytes) {
      record_.live_before = Bytes(live->as_int());
    } else {
      error(live != nullptr ? *live : root, "trace.form", "live_before is no number of bytes",
            "the bytes allocated when the step began");
    }
  }

  void read_labels(const Node& root) {
    const Node* labels = root.find("labels");
    if (labels == nullptr || !labels->is_array()) return;
    for (const Node* label : labels->items())
      record_.labels.push_back(label->is_string() ? label->as_string() : std::string("?"));
  }

  void read_event(const Node& node) {
    std::array<std::int64_t, 4> fields{};
    const bool is_event = node.is_array() && node.items().size() == fields.size();
    for (std::size_t i = 0; is_event && i < fields.size(); ++i) {
      const Node& item = *node.items()[i];
      if (item.kind() != Node::Kind::integer) return broken(item, "trace.event", "this is no whole number");
      fields[i] = item.as_int();
    }
    if (!is_event || (fields[0] != 1 && fields[0] != -1) || fields[1] < 0 || fields[1] > most_allocator_bytes)
      return broken(node, "trace.event", "this is no event");
    AllocatorEvent event;
    event.is_alloc = fields[0] == 1;
    event.bytes = fields[1];
    event.id = fields[2];
    if (fields[3] >= 0 && fields[3] < std::ssize(record_.labels)) event.label = static_cast<std::int32_t>(fields[3]);
    if (event.is_alloc) {
      if (!live_.emplace(event.id, event.bytes).second)
        return broken(node, "trace.pair", fmt::format("id {} is allocated already", event.id));
    } else if (event.id != AllocatorEvent::before) {
      const auto found = live_.find(event.id);
      if (found == live_.end())
        return broken(node, "trace.pair", fmt::format("id {} is freed, and was never allocated", event.id));
      if (found->second != event.bytes)
        return broken(node, "trace.pair",
                      fmt::format("id {} has {} bytes here, and {} where it was allocated", event.id, event.bytes,
                                  found->second));
      live_.erase(found);
    }
    record_.events.push_back(event);
  }

  AllocatorRecord record_;
  Diagnostics diagnostics_;
  std::unordered_map<std::int64_t, std::int64_t> live_;  ///< id -> bytes
  int told_ = 0, untold_ = 0;
};

}  // namespace

const std::string& AllocatorRecord::label_of(const AllocatorEvent& event) const {
  static const std::string none;
  return event.label == AllocatorEvent::no_label ? none : labels[static_cast<std::size_t>(event.label)];
}

Result<AllocatorRecord> read_allocator_trace(const std::shared_ptr<const SourceFile>& file) {
  const auto document = parse_document(file, Syntax::json);
  if (!document) return document.diagnostics();
  auto record = TraceReader(file->name).read(document->root());
  record.diagnostics().insert(record.diagnostics().begin(), document.diagnostics().begin(),
                              document.diagnostics().end());
  return record;
}

Result<std::shared_ptr<const SourceFile>> load_unpacked(const std::string& path, std::size_t limit) {
  const gzFile stream = gzopen(path.c_str(), "rb");  // reads what is not compressed as it is
  if (stream == nullptr) throw MachineError(fmt::format("{}: the file is missing or unreadable", path));
  auto file = std::make_shared<SourceFile>();
  file->name = path;
  std::array<char, 1 << 16> block{};
  int read = 0;
  while ((read = gzread(stream, block.data(), block.size())) > 0 && file->text.size() <= limit)
    file->text.append(block.data(), static_cast<std::size_t>(read));
  int status = Z_OK;
  gzerror(stream, &status);
  gzclose(stream);
  if (status == Z_ERRNO) throw MachineError(fmt::format("{}: the file is missing or unreadable", path));
  const bool too_large = file->text.size() > limit;
  if (!too_large && status != Z_BUF_ERROR && status != Z_DATA_ERROR) return std::shared_ptr<const SourceFile>(file);
  Diagnostic diagnostic;
  diagnostic.code = "trace.gzip";
  diagnostic.place = place_in(file, file->text.size(), file->text.size());
  diagnostic.message = too_large
                           ? fmt::format("the file is larger than {}", format(Bytes(static_cast<std::int64_t>(limit))))
                       : status == Z_BUF_ERROR ? "the compressed file is cut off after this"
                                               : "the compressed file is damaged after this";
  return diagnostic;
}

}  // namespace plimsoll
