// The text tables of nccl-tests (calibrate/import/import.hpp).  A row, in any log, possibly behind a launcher's prefix:
//   size(B) count type redop root   time(us) algbw(GB/s) busbw(GB/s) #wrong   time algbw busbw #wrong
// the second four in place.  algbw = size / time; busbw = algbw times the collective's factor (nccl-tests, PERFORMANCE.md),
// from which an unnamed collective and the number of ranks can be told.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>
#include <set>
#include <sstream>

#include "calibrate/import/import.hpp"
#include "calibrate/probe/probe.hpp"
#include "calibrate/samples/text_lines.hpp"
#include "planner/spec/limits.hpp"

namespace plimsoll::calibrate {
namespace {

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  std::size_t at = 0;
  while ((at = text.find_first_not_of(" \t", at)) != std::string_view::npos) {
    const std::size_t end = std::min(text.find_first_of(" \t", at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

template <class Number>
std::optional<Number> number(std::string_view word) {
  Number value{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return {};
  return value;
}

std::string dtype_of(std::string_view type) {
  if (type == "float") return "fp32";
  if (type == "half") return "fp16";
  if (type == "bfloat16") return "bf16";
  if (type == "double") return "fp64";
  return std::string(type);
}

/// The collective of a program's name: "all_gather_perf" -> "all_gather"; "" where it is none.
std::string op_in(std::string_view text) {
  static constexpr std::array<std::array<std::string_view, 2>, 9> names = {{{"all_gather", "all_gather"},
                                                                            {"reduce_scatter", "reduce_scatter"},
                                                                            {"all_reduce", "all_reduce"},
                                                                            {"alltoall", "all_to_all"},
                                                                            {"all_to_all", "all_to_all"},
                                                                            {"broadcast", "broadcast"},
                                                                            {"sendrecv", "send_receive"},
                                                                            {"hypercube", "hypercube"},
                                                                            {"reduce_perf", "reduce"}}};
  for (const auto& [spelt, name] : names) {
    if (text.find(spelt) != std::string_view::npos) return std::string(name);
  }
  return {};
}

struct Figures {
  double time_us = 0, algbw = 0, busbw = 0, wrong = 0;
};
struct Row {
  std::int64_t size = 0;
  std::string dtype;
  bool reduces = false;
  std::vector<Figures> figures;  ///< out of place, in place
};

/// A row of the table, wherever it begins in the line.
std::optional<Row> row_of(std::string_view line) {
  const auto words = words_of(line);
  for (std::size_t first = 0; first < words.size() && first < 4; ++first) {
    const auto left = words.size() - first;
    if (left < 7) break;
    const auto size = number<std::int64_t>(words[first]);
    const auto count = number<std::int64_t>(words[first + 1]);
    const std::string_view type = words[first + 2];
    if (!size || !count || *size < 0 || number<double>(type)) continue;
    Row row;
    row.size = *size;
    row.dtype = dtype_of(type);
    std::size_t at = first + 3;
    if (!number<double>(words[at])) {  // redop, root
      row.reduces = words[at] != "none";
      at += 2;
    }
    while (at + 3 <= words.size()) {
      const auto time = number<double>(words[at]);
      const auto algbw = number<double>(words[at + 1]);
      const auto busbw = number<double>(words[at + 2]);
      if (!time || !algbw || !busbw) break;
      Figures f{*time, *algbw, *busbw, 0};
      if (at + 3 < words.size()) f.wrong = number<double>(words[at + 3]).value_or(0);
      row.figures.push_back(f);
      at += 4;
    }
    if (!row.figures.empty()) return row;
  }
  return {};
}

/// A row that ends before its first bandwidths.
bool is_cut(std::string_view line) {
  static const std::set<std::string_view> types{"int8", "uint8", "int32",  "uint32",   "int64",  "uint64",
                                                "half", "float", "double", "bfloat16", "f8e4m3", "f8e5m2"};
  const auto words = words_of(line);
  for (std::size_t first = 0; first + 2 < words.size() && first < 4; ++first) {
    if (number<std::int64_t>(words[first]) && number<std::int64_t>(words[first + 1]) &&
        types.contains(words[first + 2]))
      return true;
  }
  return false;
}

class Reader {
 public:
  Reader(const std::string& path, const ImportOptions& options)
      : options_(options), file_(std::make_shared<SourceFile>(SourceFile{path, {}})) {
    result_.kind = LogKind::nccl_tests;
    result_.header.backend = "import";
    result_.header.device = options.device;
    op_ = !options.op.empty() ? options.op : op_in(path.substr(path.find_last_of('/') + 1));
  }

  void read(const TextLine& line) {
    line_ = line.number;
    if (!line.damage.empty()) return warn("cut", fmt::format("{}; the lines before are used", line.damage));
    const std::string_view text = line.text;
    if (text.find("NCCL INFO") != std::string_view::npos || text.find("NCCL WARN") != std::string_view::npos)
      return leave("NCCL_DEBUG lines");
    const std::size_t hash = text.find('#');
    const std::string_view table = text.substr(0, hash == std::string_view::npos ? text.size() : hash);
    if (const auto row = row_of(table)) return take(*row);
    if (is_cut(table)) return warn("cut", "this row ends before its time and bandwidths; it is left out");
    read_header(text);
  }

  Result<Imported> finish() {
    if (result_.samples.empty() && !has_errors(diagnostics_)) {
      diagnostics_.push_back({Severity::error,
                              "import.empty",
                              {file_, 0, 0, 1, {}},
                              "there is no row of nccl-tests that can be used in this log",
                              {},
                              "a row has size, count, type, redop, root, time, algbw, busbw and #wrong"});
    }
    if (has_errors(diagnostics_)) return diagnostics_;
    return {std::move(result_), std::move(diagnostics_)};
  }

 private:
  void leave(const char* reason) { ++result_.leftovers[reason]; }
  void warn(const char* code, std::string message) {
    diagnostics_.push_back(
        {Severity::warning, fmt::format("import.{}", code), {file_, line_, 1, 1, {}}, std::move(message), {}, {}});
  }

  /// "#  Rank  0 Group  0 Pid 1 on host device 0 [0x1b] NVIDIA H100", "# Collective test starting: all_gather_perf"
  void read_header(std::string_view text) {
    const auto words = words_of(text);
    if (words.empty()) return;
    for (std::size_t i = 0; i + 1 < words.size(); ++i) {
      if (words[i] != "Rank") continue;
      const auto rank = number<int>(words[i + 1]);
      if (!rank || *rank < 0 || *rank >= limits::world) continue;
      if (*rank == 0) new_run();
      ranks_ = std::max(ranks_, *rank + 1);
      for (std::size_t j = i; j + 1 < words.size(); ++j) {
        if (words[j] == "on") hosts_.insert(std::string(words[j + 1]));
      }
      const std::size_t bracket = text.rfind(']');
      if (bracket != std::string_view::npos && bracket + 2 < text.size()) {
        result_.header.device_name = std::string(text.substr(bracket + 2));
        if (options_.device.empty()) result_.header.device = device_key(result_.header.device_name, 0);
      }
      return;
    }
    const std::string op = op_in(text);
    if (!op.empty() &&
        (text.find("starting") != std::string_view::npos || text.find("_perf") != std::string_view::npos) &&
        options_.op.empty()) {
      op_ = op;
      return;
    }
    if (text.front() != '#' && text.find('#') == std::string_view::npos) leave("lines that are no row");
  }

  void new_run() {
    ranks_ = 0;
    hosts_.clear();
  }

  void take(const Row& row) {
    if (row.size == 0) return leave("rows of size 0");
    for (std::size_t i = 0; i < row.figures.size(); ++i) take(row, row.figures[i], i == 1);
  }

  void take(const Row& row, const Figures& f, bool in_place) {
    if (!is_possible_time(1e-6 * f.time_us))
      return warn("time",
                  fmt::format("{} us is no time from a nanosecond to a thousand seconds; it is left out", f.time_us));
    if (f.wrong != 0) return warn("wrong", fmt::format("{} values were wrong here; the time is left out", f.wrong));
    // Bandwidths are printed with two decimals.
    const double algbw = 1e-3 * static_cast<double>(row.size) / f.time_us;
    if (std::abs(algbw - f.algbw) > 0.05 * algbw + 0.01)
      return warn("units", fmt::format("{} B in {} us are {:.2f} GB/s, but the row says {}; it is left out", row.size,
                                       f.time_us, algbw, f.algbw));
    const std::string op = op_.empty() ? op_by_factor(row, f) : op_;
    if (op.empty()) {
      if (!asked_)
        warn("op",
             "no line tells which collective this is; rows like this one are left out (--op all_gather would tell)");
      asked_ = true;
      return leave("rows of an unknown collective");
    }
    const int ranks = ranks_ > 0 ? ranks_ : ranks_by_factor(op, f);
    if (ranks < 2) return leave("rows of an unknown number of ranks");
    Sample sample;
    sample.point = {
        "collective",
        {{"op", op}, {"dtype", row.dtype}, {"group", "world"}, {"tier", tier()}, {"place", in_place ? "in" : "out"}},
        {{"bytes", row.size}, {"ranks", ranks}}};
    sample.time_s = sample.low_s = sample.high_s = 1e-6 * f.time_us;
    sample.repetitions = 20;  // nccl-tests' default
    sample.source = file_->name;
    sample.line = line_;
    result_.header.world = std::max(result_.header.world, ranks);
    result_.samples.push_back(std::move(sample));
  }

  std::string tier() const {
    if (!options_.tier.empty()) return options_.tier;
    return hosts_.size() > 1 ? "nic" : "nvlink";
  }

  /// busbw / algbw: 2 (n-1)/n of an all-reduce is at least 1; the others need a name.
  static std::string op_by_factor(const Row& row, const Figures& f) {
    if (f.algbw < 1) return {};
    const double factor = f.busbw / f.algbw;
    return row.reduces && factor >= 1.2 ? "all_reduce" : "";
  }
  static int ranks_by_factor(const std::string& op, const Figures& f) {
    if (f.algbw < 1) return 0;
    double part = f.busbw / f.algbw;
    if (op == "all_reduce") part /= 2;
    return part > 0.4 && part < 0.9999 ? static_cast<int>(std::lround(1 / (1 - part))) : 0;
  }

  const ImportOptions& options_;
  std::shared_ptr<SourceFile> file_;
  Imported result_;
  Diagnostics diagnostics_;
  std::string op_;
  std::set<std::string> hosts_;
  int ranks_ = 0, line_ = 0;
  bool asked_ = false;
};

}  // namespace

Result<Imported> import_nccl_tests(const std::string& path, const ImportOptions& options) {
  Reader reader(path, options);
  for_each_line(path, [&](const TextLine& line) { reader.read(line); });
  return reader.finish();
}

}  // namespace plimsoll::calibrate
