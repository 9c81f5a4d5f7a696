// Reading a profiler trace (planner/cli/profiler_trace.hpp).
#include "planner/cli/profiler_trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace plimsoll {
namespace {

using Json = nlohmann::json;

constexpr std::size_t most_told = 10;  // broken events that are told one by one
constexpr double longest_us = 1e12;

/// What is kept of the event that is being read.
struct Event {
  std::string name, category;
  double start_us = -1, duration_us = -1;
};

class Handler final : public nlohmann::json_sax<Json> {
 public:
  explicit Handler(const std::shared_ptr<const SourceFile>& file) : file_(file) { trace_.name = file->name; }

  Result<ProfilerTrace> result() {
    if (diagnostics_.empty() && !seen_events_)
      error({}, "kineto.form", "this is no profiler trace: it has no array \"traceEvents\"",
            "torch.profiler's export_chrome_trace writes one");
    if (untold_ > 0) error({}, "kineto.event", fmt::format("events as broken as these: {} more", untold_), {});
    if (diagnostics_.empty() && trace_.kernels.empty())
      error("/traceEvents", "kineto.empty", "the trace has no kernels",
            "profile with ProfilerActivity.CUDA, one steady step");
    if (!diagnostics_.empty()) return std::move(diagnostics_);
    std::stable_sort(trace_.kernels.begin(), trace_.kernels.end(),
                     [](const ProfiledKernel& a, const ProfiledKernel& b) { return a.start_us < b.start_us; });
    return std::move(trace_);
  }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t value) override { return number(static_cast<double>(value)); }
  bool number_unsigned(number_unsigned_t value) override { return number(static_cast<double>(value)); }
  bool number_float(number_float_t value, const string_t&) override { return number(value); }
  bool binary(binary_t&) override { return true; }

  bool string(string_t& value) override {
    if (in_event()) {
      if (key_ == "name") {
        event_.name = std::move(value);
      } else if (key_ == "cat") {
        event_.category = std::move(value);
      }
    }
    return true;
  }
  bool key(string_t& value) override {
    key_ = std::move(value);
    if (depth_ == 1) section_ = key_;
    return true;
  }
  bool start_object(std::size_t) override {
    ++depth_;
    if (in_event()) event_ = {};
    return true;
  }
  bool end_object() override {
    if (in_event()) take();
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    ++depth_;
    if (depth_ == 2 && section_ == "traceEvents") seen_events_ = true;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const Json::exception&) override {
    Diagnostic diagnostic;
    diagnostic.code = "kineto.json";
    const std::size_t at = std::min(position == 0 ? 0 : position - 1, file_->text.size());
    const auto begin = file_->text.begin();
    const auto end = begin + static_cast<std::ptrdiff_t>(at);
    const auto lines = std::count(begin, end, '\n');
    const bool cut = at + 1 >= file_->text.size();
    // A trace may be one line of many megabytes, which nobody wants to see: the line's number is enough.
    auto unquoted = std::make_shared<SourceFile>();
    unquoted->name = file_->name;
    diagnostic.place.file = std::move(unquoted);
    diagnostic.place.line = static_cast<int>(std::min<std::ptrdiff_t>(lines + 1, 1'000'000'000));
    diagnostic.place.column = 1;
    diagnostic.message = fmt::format("this is not valid JSON: it {} at byte {}", cut ? "breaks off" : "goes wrong", at);
    diagnostic.help = cut ? "the trace was cut off while it was written or copied" : "";
    diagnostics_.push_back(std::move(diagnostic));
    return false;
  }

 private:
  /// Depth 1 is the document, 2 the array of events, 3 an event; its args lie at 4.
  bool in_event() const { return depth_ == 3 && section_ == "traceEvents"; }

  bool number(double value) {
    if (in_event()) {
      if (key_ == "ts") event_.start_us = value;
      if (key_ == "dur") event_.duration_us = value;
    } else if (section_ == "distributedInfo" && depth_ == 2 && key_ == "world_size" && value >= 1 && value <= 1e9) {
      trace_.world_size = static_cast<int>(value);
    }
    return true;
  }

  void take() {
    const std::size_t index = count_++;
    if (event_.category != "kernel" && event_.category != "gpu_memcpy" && event_.category != "gpu_memset") return;
    const bool sound = std::isfinite(event_.start_us) && event_.start_us >= 0 && event_.duration_us >= 0 &&
                       event_.duration_us <= longest_us && !event_.name.empty();
    if (!sound) {
      if (diagnostics_.size() < most_told) {
        error(fmt::format("/traceEvents/{}", index), "kineto.event",
              fmt::format("event {} is a {} without a name, a start (ts) or a duration (dur) of at least 0", index,
                          event_.category),
              {});
      } else {
        ++untold_;
      }
      return;
    }
    trace_.kernels.push_back({class_of(event_.name), event_.start_us, event_.start_us + event_.duration_us});
  }

  void error(std::string pointer, const char* code, std::string message, std::string help) {
    Diagnostic diagnostic;
    diagnostic.code = code;
    auto file = std::make_shared<SourceFile>();
    file->name = file_->name;
    diagnostic.place.file = std::move(file);
    diagnostic.place.pointer = std::move(pointer);
    diagnostic.message = std::move(message);
    diagnostic.help = std::move(help);
    diagnostics_.push_back(std::move(diagnostic));
  }

  std::shared_ptr<const SourceFile> file_;
  ProfilerTrace trace_;
  Diagnostics diagnostics_;
  Event event_;
  std::string key_, section_;
  int depth_ = 0;
  bool seen_events_ = false;
  std::size_t count_ = 0, untold_ = 0;
};

}  // namespace

Result<ProfilerTrace> read_profiler_trace(const std::shared_ptr<const SourceFile>& file) {
  Handler handler(file);
  Json::sax_parse(file->text, &handler);
  return handler.result();
}

}  // namespace plimsoll
