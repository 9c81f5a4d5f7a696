// The SAX handler (calibrate/import/trace_events.hpp).  Depths: 1 the file, 2 traceEvents, 3 an event, 4 its args, 5 and 6 lists in
// them.
#include "calibrate/import/trace_events.hpp"

#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "calibrate/samples/text_lines.hpp"
#include "planner/base/machine_error.hpp"

namespace plimsoll::calibrate {
namespace {

/// The file's characters as an input iterator; the end of the file is a null reader.
class Characters {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  struct Source {
    explicit Source(const std::string& path) : reader(path) { refill(); }
    void refill() {
      do {
        const std::string_view piece = reader.next();
        text = std::exchange(held, {}).append(piece);
        if (piece.empty()) break;
        const std::size_t whole = text.find_last_not_of(" :Na") + 1;
        held = text.substr(whole);
        text.resize(whole);
      } while (text.empty());
      // Python writes NaN where a number is due, which is no JSON: as 0 it is counted among the times that are none.
      for (std::size_t i = 0; (i = text.find("NaN", i)) != std::string::npos; i += 3) {
        const std::size_t before = i == 0 ? std::string::npos : text.find_last_not_of(' ', i - 1);
        if (before != std::string::npos && text[before] == ':') text.replace(i, 3, "0.0");
      }
      at = text.data();
      end = at + text.size();
    }
    PieceReader reader;
    std::string text, held;  ///< held: what may be the beginning of ": NaN" waits for the rest of it
    const char *at = nullptr, *end = nullptr;
  };

  Characters() = default;
  explicit Characters(Source& source) : source_(&source) {}
  reference operator*() const { return *source_->at; }
  Characters& operator++() {
    if (++source_->at == source_->end) source_->refill();
    return *this;
  }
  Characters operator++(int) {
    Characters before = *this;
    ++*this;
    return before;
  }
  bool operator==(const Characters& other) const { return ended() == other.ended(); }
  bool operator!=(const Characters& other) const { return !(*this == other); }

 private:
  bool ended() const { return !source_ || source_->at == source_->end; }
  Source* source_ = nullptr;
};

/// The keys that are read; all others are skipped.
enum class Key : std::uint8_t {
  none,
  name,
  category,
  start,
  duration,
  external_id,
  stream,
  dims,
  strides,
  types,
  collective,
  collective_type,
  in_elements,
  out_elements,
  group_size,
  multiprocessors,
  memory
};

Key event_key(const std::string& key) {
  if (key == "name") return Key::name;
  if (key == "cat") return Key::category;
  if (key == "ts") return Key::start;
  if (key == "dur") return Key::duration;
  return Key::none;
}
Key args_key(const std::string& key) {
  if (key == "External id") return Key::external_id;
  if (key == "stream") return Key::stream;
  if (key == "Input Dims") return Key::dims;
  if (key == "Input Strides") return Key::strides;
  if (key == "Input type") return Key::types;
  if (key == "Collective name") return Key::collective;
  if (key == "dtype") return Key::collective_type;
  if (key == "In msg nelems") return Key::in_elements;
  if (key == "Out msg nelems") return Key::out_elements;
  if (key == "Group size") return Key::group_size;
  return Key::none;
}
Key property_key(const std::string& key) {
  if (key == "name") return Key::name;
  if (key == "numSms") return Key::multiprocessors;
  if (key == "totalGlobalMem") return Key::memory;
  return Key::none;
}

using Json = nlohmann::json;

class Handler : public nlohmann::json_sax<Json> {
 public:
  Handler(const std::function<void(const TraceEvent&)>& use,
          const std::function<void(const std::string&, std::int64_t, std::int64_t)>& device)
      : use_(use), device_(device) {}
  TraceEnd end;

  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(number_integer_t value) override { return take_number(static_cast<double>(value), value); }
  bool number_unsigned(number_unsigned_t value) override {
    return take_number(static_cast<double>(value), static_cast<std::int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t& /*text*/) override {
    return take_number(value, static_cast<std::int64_t>(value));
  }
  bool binary(binary_t& /*value*/) override { return true; }

  bool string(string_t& value) override {
    if (depth_ == 5 && key_ == Key::types) {
      event_.types.push_back(std::move(value));
      return true;
    }
    if (depth_ != 3 && depth_ != 4) return true;
    switch (key_) {
      case Key::name: event_.name = std::move(value); break;
      case Key::category: event_.category = std::move(value); break;
      case Key::collective: event_.collective = std::move(value); break;
      case Key::collective_type: event_.collective_type = std::move(value); break;
      default: break;
    }
    return true;
  }

  bool start_object(std::size_t /*elements*/) override {
    ++depth_;
    if (depth_ == 3 && section_ != Section::other) event_ = {};
    if (depth_ == 3) multiprocessors_ = memory_ = 0;
    return true;
  }
  bool end_object() override {
    if (depth_ == 3 && section_ == Section::events) {
      ++end.events;
      use_(event_);
    } else if (depth_ == 3 && section_ == Section::devices) {
      device_(event_.name, multiprocessors_, memory_);
    }
    --depth_;
    key_ = Key::none;
    return true;
  }
  bool start_array(std::size_t /*elements*/) override {
    ++depth_;
    if (depth_ == 6) {
      if (key_ == Key::dims) event_.dims.emplace_back();
      if (key_ == Key::strides) event_.strides.emplace_back();
    }
    return true;
  }
  bool end_array() override {
    --depth_;
    if (depth_ == 4) key_ = Key::none;
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ == 1)
      section_ = name == "traceEvents"        ? Section::events
                 : name == "deviceProperties" ? Section::devices
                                              : Section::other;
    if (section_ == Section::other) {
      key_ = Key::none;
    } else if (depth_ == 3) {
      key_ = section_ == Section::events ? event_key(name) : property_key(name);
    } else if (depth_ == 4) {
      key_ = section_ == Section::events ? args_key(name) : Key::none;
    }
    return true;
  }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    end.complete = false;
    end.reason = "byte " + std::to_string(position);
    static_cast<void>(error);
    return false;
  }

 private:
  enum class Section : std::uint8_t { other, events, devices };

  bool take_number(double value, std::int64_t whole) {
    if (depth_ == 6) {
      if (key_ == Key::dims && !event_.dims.empty()) event_.dims.back().push_back(whole);
      if (key_ == Key::strides && !event_.strides.empty()) event_.strides.back().push_back(whole);
      return true;
    }
    if (depth_ != 3 && depth_ != 4) return true;
    switch (key_) {
      case Key::start: event_.start = value; break;
      case Key::duration: event_.duration = value; break;
      case Key::external_id: event_.external_id = whole; break;
      case Key::stream: event_.stream = whole; break;
      case Key::in_elements: event_.in_elements = whole; break;
      case Key::out_elements: event_.out_elements = whole; break;
      case Key::group_size: event_.group_size = whole; break;
      case Key::multiprocessors: multiprocessors_ = whole; break;
      case Key::memory: memory_ = whole; break;
      default: break;
    }
    return true;
  }

  const std::function<void(const TraceEvent&)>& use_;
  const std::function<void(const std::string&, std::int64_t, std::int64_t)>& device_;
  TraceEvent event_;
  Section section_ = Section::other;
  Key key_ = Key::none;
  int depth_ = 0;
  std::int64_t multiprocessors_ = 0, memory_ = 0;
};

}  // namespace

TraceEnd read_trace(const std::string& path, const std::function<void(const TraceEvent&)>& use,
                    const std::function<void(const std::string&, std::int64_t, std::int64_t)>& device) {
  Handler handler(use, device);
  Characters::Source source(path);
  try {
    Json::sax_parse(Characters(source), Characters(), &handler);
  } catch (const MachineError& error) {
    // A gzip that is cut off: what came before it is there.
    if (handler.end.events == 0) throw;
    handler.end.complete = false;
    handler.end.reason = error.what();
  }
  return handler.end;
}

}  // namespace plimsoll::calibrate
