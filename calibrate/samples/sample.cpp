// Samples as lines of JSON, and back (calibrate/samples/sample.hpp).
#include "calibrate/samples/sample.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include "calibrate/samples/text_lines.hpp"
#include "planner/spec/limits.hpp"

namespace plimsoll::calibrate {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* format = "plimsoll-samples/1";

Json json_of(const Header& h) {
  return {{"format", format},
          {"device", h.device},
          {"device_name", h.device_name},
          {"machine", h.machine},
          {"backend", h.backend},
          {"date", h.date},
          {"versions", h.versions},
          {"multiprocessors", h.multiprocessors},
          {"cache_bytes", h.cache_bytes},
          {"world", h.world}};
}

std::string dumped(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

/// Text of a member, "" where it is absent or no string.
std::string text(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

double number(const Json& json, const char* key, double otherwise) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number() ? found->get<double>() : otherwise;
}

/// A count of whole things, cut to what the type holds.
template <class Integer>
Integer count(const Json& json, const char* key, double otherwise) {
  constexpr auto most = static_cast<double>(sizeof(Integer) > 4 ? limits::bytes : std::numeric_limits<int>::max());
  return static_cast<Integer>(std::clamp(number(json, key, otherwise), 0.0, most));
}

Header header_of(const Json& json) {
  Header h;
  h.device = text(json, "device");
  h.device_name = text(json, "device_name");
  h.machine = text(json, "machine");
  h.backend = text(json, "backend");
  h.date = text(json, "date");
  h.versions = text(json, "versions");
  h.multiprocessors = count<int>(json, "multiprocessors", 0);
  h.cache_bytes = count<std::int64_t>(json, "cache_bytes", 0);
  h.world = count<int>(json, "world", 1);
  return h;
}

/// Reads the lines of one file into a SampleFile; what is wrong with a line is diagnosed there.
class LineReader {
 public:
  LineReader(const std::string& path, Diagnostics& diagnostics)
      : file_(std::make_shared<SourceFile>(SourceFile{path, {}})), diagnostics_(diagnostics) {
    result_.path = path;
  }

  void read(const TextLine& line) {
    line_ = line.number;
    if (!line.damage.empty()) return warn("line", fmt::format("{}; the lines before are used", line.damage), {});
    if (line.text.empty()) return;
    if (!line.complete) return warn("line", "the file ends within this line; it is left out", "bench --resume goes on");
    const Json json = Json::parse(line.text, nullptr, false);
    if (json.is_discarded() || !json.is_object())
      return warn("line", "this line is no JSON object; it is left out", {});
    if (const auto header = json.find("header"); header != json.end()) return read_header(*header);
    if (const auto failed = json.find("failed"); failed != json.end()) {
      result_.failures.push_back({text(*failed, "key"), text(*failed, "reason")});
      return;
    }
    if (foreign_) return;
    if (auto sample = read_sample(json)) {
      if (!seen_.insert(key_of(sample->point)).second)
        return warn("repeated", "this point stands in the file already; the first counts", {});
      result_.samples.push_back(std::move(*sample));
    }
  }

  SampleFile take() { return std::move(result_); }
  bool has_header() const { return has_header_; }

 private:
  void warn(const char* code, std::string message, std::string help) {
    diagnostics_.push_back({Severity::warning,
                            fmt::format("samples.{}", code),
                            {file_, line_, 1, 1, {}},
                            std::move(message),
                            {},
                            std::move(help)});
  }

  void read_header(const Json& json) {
    if (const std::string found = text(json, "format"); found != format)
      return warn("format", fmt::format(R"(the format is "{}", not "{}"; this header is left out)", found, format), {});
    const Header header = header_of(json);
    if (header.device.empty()) return warn("device", R"(a header says which "device" it is; this one is left out)", {});
    if (!has_header_) {
      has_header_ = true;
      result_.header = header;
      return;
    }
    foreign_ = header.machine != result_.header.machine || header.device != result_.header.device;
    if (foreign_)
      warn("machine",
           fmt::format("from here on these are samples of another machine ({} {}, the file began with {} {}); they are "
                       "left out",
                       header.device, header.machine, result_.header.device, result_.header.machine),
           "a file holds one machine's samples");
  }

  std::optional<Sample> read_sample(const Json& json) {
    Sample s;
    s.point.kind = text(json, "kind");
    s.line = line_;
    if (s.point.kind.empty()) {
      warn("kind", "a sample needs \"kind\"; this line is left out", {});
      return {};
    }
    if (const auto labels = json.find("labels"); labels != json.end() && labels->is_object()) {
      for (const auto& [key, value] : labels->items())
        if (value.is_string()) s.point.labels[key] = value.get<std::string>();
    }
    if (const auto sizes = json.find("sizes"); sizes != json.end() && sizes->is_object()) {
      for (const auto& [key, value] : sizes->items()) {
        if (!value.is_number_integer() || value.get<std::int64_t>() < 0 || value.get<std::int64_t>() > limits::bytes) {
          warn("size", fmt::format("the size {} is no whole number from 0 to 2^60; this sample is left out", key), {});
          return {};
        }
        s.point.sizes[key] = value.get<std::int64_t>();
      }
    }
    if (const auto figures = json.find("figures"); figures != json.end() && figures->is_object()) {
      for (const auto& [key, value] : figures->items())
        if (value.is_number()) s.figures[key] = value.get<double>();
    }
    s.time_s = number(json, "time_s", std::nan(""));
    if (s.point.kind == "fixed_bytes") {
      s.time_s = 0;
    } else if (!is_possible_time(s.time_s)) {
      warn("time", "time_s is no time from a nanosecond to a thousand seconds; this sample is left out", {});
      return {};
    }
    s.low_s = number(json, "low_s", s.time_s);
    s.high_s = number(json, "high_s", s.time_s);
    if (s.point.kind == "fixed_bytes") s.low_s = s.high_s = 0;
    if (s.low_s > s.time_s || s.high_s < s.time_s) {
      warn("interval", "time_s lies outside [low_s, high_s]; the interval is dropped", {});
      s.low_s = s.high_s = s.time_s;
    }
    s.repetitions = count<int>(json, "repetitions", 1);
    s.note = text(json, "note");
    s.source = text(json, "source");
    return s;
  }

  std::shared_ptr<SourceFile> file_;
  Diagnostics& diagnostics_;
  SampleFile result_;
  std::unordered_set<std::string> seen_;
  int line_ = 0;
  bool has_header_ = false, foreign_ = false;
};

}  // namespace

bool is_possible_time(double seconds) { return seconds >= 1e-9 && seconds <= 1e3; }

// A point has a few of each: looking through them is faster than making a string to look up.
std::string Point::label(std::string_view name) const {
  for (const auto& [key, value] : labels) {
    if (key == name) return value;
  }
  return {};
}

std::int64_t Point::size(std::string_view name) const {
  for (const auto& [key, value] : sizes) {
    if (key == name) return value;
  }
  return 0;
}

std::string key_of(const Point& point) {
  std::string key = point.kind;
  const auto append = [&key](std::string_view name, std::string_view value) {
    key.append(1, '/').append(name).append(1, '=').append(value);
  };
  for (const auto& [name, value] : point.labels) append(name, value);
  for (const auto& [name, value] : point.sizes) append(name, fmt::format_int(value).c_str());
  return key;
}

Result<SampleFile> read_samples(const std::string& path) {
  Diagnostics diagnostics;
  LineReader reader(path, diagnostics);
  std::size_t whole = 0;
  for_each_line(path, [&](const TextLine& line) {
    reader.read(line);
    if (line.complete) whole = line.end;
  });
  if (!reader.has_header()) {
    diagnostics.push_back({Severity::error,
                           "samples.header",
                           {std::make_shared<SourceFile>(SourceFile{path, {}}), 0, 0, 1, {}},
                           "this is no samples file: it has no {\"header\": ...} line",
                           {},
                           "plimsoll-calibrate bench writes one, plimsoll-calibrate import makes one from logs"});
    return diagnostics;
  }
  SampleFile file = reader.take();
  file.whole_bytes = whole;
  return {std::move(file), std::move(diagnostics)};
}

std::string line_of(const Header& header) { return dumped({{"header", json_of(header)}}); }

std::string line_of(const Sample& s) {
  Json json = {{"kind", s.point.kind}};
  if (!s.point.labels.empty()) json["labels"] = s.point.labels;
  if (!s.point.sizes.empty()) json["sizes"] = s.point.sizes;
  json["time_s"] = s.time_s;
  json["low_s"] = s.low_s;
  json["high_s"] = s.high_s;
  json["repetitions"] = s.repetitions;
  if (!s.figures.empty()) json["figures"] = s.figures;
  if (!s.note.empty()) json["note"] = s.note;
  if (!s.source.empty()) json["source"] = s.source;
  return dumped(json);
}

std::string line_of(const Failure& failure) {
  return dumped({{"failed", {{"key", failure.key}, {"reason", failure.reason}}}});
}

}  // namespace plimsoll::calibrate
