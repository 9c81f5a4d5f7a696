// Which kind of log is it?  And Google Benchmark's JSON (calibrate/import/import.hpp).
#include "calibrate/import/import.hpp"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "calibrate/samples/text_lines.hpp"
#include "planner/spec/devices.hpp"

namespace plimsoll::calibrate {

const char* name_of(LogKind kind) {
  switch (kind) {
    case LogKind::nccl_tests: return "nccl-tests";
    case LogKind::kineto: return "Kineto trace";
    case LogKind::google_benchmark: return "Google Benchmark";
    case LogKind::unknown: return "unknown";
  }
  return "";
}

LogKind kind_of_log(const std::string& path) {
  PieceReader reader(path);
  const std::string head(reader.next());
  const std::size_t first = head.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return LogKind::unknown;
  if (head[first] == '{' || head[first] == '[') {
    if (head.find("\"library_build_type\"") != std::string::npos || head.find("\"benchmarks\"") != std::string::npos)
      return LogKind::google_benchmark;
    if (head.find("\"traceEvents\"") != std::string::npos || head.find("\"ph\"") != std::string::npos)
      return LogKind::kineto;
    return LogKind::unknown;
  }
  for (const char* mark : {"algbw", "nccl-tests", "busbw", "minBytes"}) {
    if (head.find(mark) != std::string::npos) return LogKind::nccl_tests;
  }
  return LogKind::unknown;
}

namespace {

/// "gemm/dtype=bf16/m=8192/iterations:1/manual_time" -> the point; false where it is no key.
bool parse_key(const std::string& name, Point& point) {
  std::size_t at = 0;
  bool first = true;
  while (at <= name.size()) {
    const std::size_t end = std::min(name.find('/', at), name.size());
    const std::string part = name.substr(at, end - at);
    at = end + 1;
    if (first) {
      point.kind = part;
      first = false;
      continue;
    }
    const std::size_t equals = part.find('=');
    if (equals == std::string::npos) continue;  // iterations:1, manual_time
    const std::string value = part.substr(equals + 1);
    if (!value.empty() && value.find_first_not_of("0123456789") == std::string::npos && value.size() < 19) {
      point.sizes[part.substr(0, equals)] = std::stoll(value);
    } else {
      point.labels[part.substr(0, equals)] = value;
    }
  }
  return !point.kind.empty() && (!point.sizes.empty() || !point.labels.empty());
}

double seconds_per(const std::string& unit) {
  return unit == "ns" ? 1e-9 : unit == "us" ? 1e-6 : unit == "ms" ? 1e-3 : unit == "s" ? 1 : 0;
}

}  // namespace

Result<Imported> import_google_benchmark(const std::string& path, const ImportOptions& options) {
  const auto file = std::make_shared<SourceFile>(SourceFile{path, {}});
  std::string text;
  PieceReader reader(path);
  for (auto piece = reader.next(); !piece.empty(); piece = reader.next()) text += piece;
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.contains("benchmarks") || !json["benchmarks"].is_array()) {
    return Diagnostic{Severity::error,
                      "import.json",
                      {file, 0, 0, 1, {}},
                      "this is no JSON of Google Benchmark",
                      {},
                      "--benchmark_out=FILE --benchmark_out_format=json writes one"};
  }
  Diagnostics diagnostics;
  Imported result;
  result.kind = LogKind::google_benchmark;
  result.header.backend = "import";
  result.header.device = options.device;
  for (const auto& entry : json["benchmarks"]) {
    const auto text_of = [&](const char* key) {
      const auto found = entry.find(key);
      return found != entry.end() && found->is_string() ? found->get<std::string>() : std::string();
    };
    if (entry.value("error_occurred", false)) {
      ++result.leftovers["points that failed or were skipped"];
      continue;
    }
    if (const std::string type = text_of("run_type"); !type.empty() && type != "iteration") {
      ++result.leftovers["aggregates"];
      continue;
    }
    Sample sample;
    const double unit = seconds_per(text_of("time_unit"));
    const auto time = entry.find("real_time");
    const double seconds = time != entry.end() && time->is_number() ? unit * time->get<double>() : 0;
    if (!parse_key(text_of("name"), sample.point)) {
      ++result.leftovers["benchmarks of other programs"];
      continue;
    }
    if (!std::isfinite(seconds) || seconds <= 0) {
      diagnostics.push_back({Severity::warning,
                             "import.time",
                             {file, 0, 0, 1, {}},
                             fmt::format("{} has no time above zero; it is left out", text_of("name")),
                             {},
                             {}});
      continue;
    }
    sample.time_s = sample.low_s = sample.high_s = seconds;
    for (const auto& [key, into] : {std::pair{"low_s", &sample.low_s}, std::pair{"high_s", &sample.high_s}}) {
      if (const auto found = entry.find(key); found != entry.end() && found->is_number()) *into = found->get<double>();
    }
    sample.source = path;
    result.samples.push_back(std::move(sample));
  }
  return {std::move(result), std::move(diagnostics)};
}

}  // namespace plimsoll::calibrate
