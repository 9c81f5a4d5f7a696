// Kineto traces, streamed (calibrate/import/import.hpp).  Of each event only what is needed is held: the operator's shapes by its
// external id, and each kernel's times.  A kernel belongs to the operator that has its external id.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <utility>

#include "calibrate/import/import.hpp"
#include "calibrate/import/trace_events.hpp"
#include "calibrate/probe/probe.hpp"
#include "planner/spec/limits.hpp"

namespace plimsoll::calibrate {
namespace {

/// What a product or attention operator works on.
struct Operator {
  Point point;
};

struct Kernel {
  double start = 0, end = 0;  ///< us
  std::int64_t id = 0, stream = 0;
};

std::string dtype_of(std::string_view type) {
  if (type == "c10::BFloat16" || type == "BFloat16") return "bf16";
  if (type == "c10::Half" || type == "Half") return "fp16";
  if (type == "float" || type == "Float") return "fp32";
  return std::string(type);
}

/// Products of two are whole numbers, too.
bool are_possible(const std::vector<std::int64_t>& sizes) {
  return std::all_of(sizes.begin(), sizes.end(), [](std::int64_t size) { return size > 0 && size <= limits::tokens; });
}

bool two_dimensional(const TraceEvent& e, std::size_t first) {
  return e.dims.size() > first + 1 && e.dims[first].size() == 2 && e.dims[first + 1].size() == 2 &&
         are_possible(e.dims[first]) && are_possible(e.dims[first + 1]);
}

/// mm, addmm: [m,k] x [k,n].  Which side lies transposed in memory tells the pass.
std::optional<Point> product_of(const TraceEvent& e) {
  const std::size_t first = e.name == "aten::addmm" ? 1 : 0;
  if (!two_dimensional(e, first)) return {};
  const auto& a = e.dims[first];
  const auto& b = e.dims[first + 1];
  const auto transposed = [&](std::size_t i) {
    return e.strides.size() > i && e.strides[i].size() == 2 && e.strides[i][0] == 1;
  };
  const char* layout = transposed(first) ? "weight_gradient" : transposed(first + 1) ? "forward" : "input_gradient";
  const std::string dtype = e.types.size() > first ? dtype_of(e.types[first]) : "";
  return Point{"gemm", {{"layout", layout}, {"dtype", dtype}}, {{"m", a[0]}, {"n", b[1]}, {"k", a[1]}}};
}

std::optional<Point> grouped_of(const TraceEvent& e) {
  if (e.dims.size() < 2 || e.dims[0].size() != 2 || e.dims[1].size() != 3) return {};
  if (!are_possible(e.dims[0]) || !are_possible(e.dims[1])) return {};
  const std::string dtype = e.types.empty() ? "" : dtype_of(e.types[0]);
  return Point{"gemm_grouped",
               {{"layout", "forward"}, {"dtype", dtype}},
               {{"groups", e.dims[1][0]}, {"m", e.dims[0][0]}, {"n", e.dims[1][2]}, {"k", e.dims[1][1]}}};
}

/// Q [b, A, s, d] and K [b, K, s, d] stand first (backward: behind the output's gradient); the flash and memory-efficient
/// operators below the dispatcher have [b, s, A, d].
std::optional<Point> attention_of(const TraceEvent& e) {
  const bool backward = e.name.find("backward") != std::string::npos;
  const std::size_t q = backward ? 1 : 0;
  if (e.dims.size() < q + 2 || e.dims[q].size() != 4 || e.dims[q + 1].size() != 4) return {};
  if (!are_possible(e.dims[q]) || !are_possible(e.dims[q + 1])) return {};
  const bool cudnn = e.name.find("cudnn") != std::string::npos;
  const bool flash = e.name.find("flash") != std::string::npos;
  const bool inner = !cudnn && !e.name.starts_with("aten::_scaled_dot_product_");
  const std::size_t heads = inner ? 2 : 1, length = inner ? 1 : 2;
  const auto& d = e.dims[q];
  const auto& kv = e.dims[q + 1];
  const std::string dtype = e.types.size() > q ? dtype_of(e.types[q]) : "";
  return Point{
      "attention",
      {{"direction", backward ? "backward" : "forward"},
       {"dtype", dtype},
       {"library", cudnn   ? "cudnn"
                   : flash ? "flash"
                           : "efficient"}},
      {{"batch", d[0] * d[heads]}, {"kv_batch", kv[0] * kv[heads]}, {"length", d[length]}, {"head_dim", d[3]}}};
}

bool is_attention(const std::string& name) {
  if (name.starts_with("aten::_scaled_dot_product_") && name.find("_attention") != std::string::npos) return true;
  for (const char* library : {"aten::_cudnn_attention_", "aten::_flash_attention_", "aten::_efficient_attention_"}) {
    if (name.starts_with(library)) return true;
  }
  return false;
}

std::optional<Point> point_of(const TraceEvent& e) {
  if (e.name == "aten::mm" || e.name == "aten::addmm") return product_of(e);
  if (e.name == "aten::_grouped_mm") return grouped_of(e);
  if (is_attention(e.name)) return attention_of(e);
  return {};
}

std::string collective_name(const std::string& name) {
  if (name.find("allgather") != std::string::npos || name.find("all_gather") != std::string::npos) return "all_gather";
  if (name.find("reduce_scatter") != std::string::npos) return "reduce_scatter";
  if (name.find("allreduce") != std::string::npos) return "all_reduce";
  if (name.find("all_to_all") != std::string::npos || name.find("alltoall") != std::string::npos) return "all_to_all";
  if (name.find("broadcast") != std::string::npos) return "broadcast";
  return "";
}

std::int64_t bytes_of_type(const std::string& dtype) {
  if (dtype == "bf16" || dtype == "fp16") return 2;
  if (dtype == "fp32" || dtype == "Int") return 4;
  if (dtype == "Long" || dtype == "Double" || dtype == "fp64") return 8;
  return dtype == "Byte" || dtype == "Char" || dtype == "Bool" ? 1 : 0;
}

double quantile(std::vector<double>& values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

class Collector {
 public:
  Collector(std::string path, const ImportOptions& options) : path_(std::move(path)), options_(options) {
    result_.kind = LogKind::kineto;
    result_.header.backend = "import";
    result_.header.device = options.device;
  }

  void event(const TraceEvent& e) {
    if (e.category == "cpu_op") return take_operator(e);
    const bool kernel = e.category == "kernel";
    if (!kernel && e.category != "gpu_memcpy" && e.category != "gpu_memset") return;
    if (!(e.duration > 0) || !std::isfinite(e.start) || !std::isfinite(e.duration))
      return leave("events with no usable time");
    const Kernel k{e.start, e.start + e.duration, e.external_id, e.stream};
    busy_.push_back(k);
    if (!kernel) return;
    if (e.name.starts_with("ncclDevKernel") || e.name.starts_with("ncclKernel")) {
      collectives_.emplace_back(k.start, k.end);
      return take_collective(e);
    }
    kernels_.push_back(k);
  }

  void property(const std::string& name, std::int64_t multiprocessors, std::int64_t memory) {
    if (!result_.header.device_name.empty()) return;
    result_.header.device_name = name;
    result_.header.multiprocessors = static_cast<int>(multiprocessors);
    if (result_.header.device.empty()) result_.header.device = device_key(name, memory);
  }

  Imported finish() {
    shapes();
    collectives();
    gaps();
    return std::move(result_);
  }

 private:
  void leave(const char* reason, std::int64_t count = 1) { result_.leftovers[reason] += count; }

  void take_operator(const TraceEvent& e) {
    if (e.external_id == 0) return;
    if (auto point = point_of(e)) {
      operators_[e.external_id] = {std::move(*point)};
    } else if (e.name == "aten::mm" || e.name == "aten::addmm" || e.name == "aten::_grouped_mm") {
      leave("products whose shapes are missing or not of the known form");
    } else if (is_attention(e.name)) {
      leave("attention whose shapes are missing or not of the known form");
    } else if (e.name == "aten::bmm") {
      leave("batched products");
    }
  }

  void take_collective(const TraceEvent& e) {
    const std::string op = collective_name(e.collective);
    const std::string dtype = dtype_of(e.collective_type);
    const std::int64_t elements = std::max(e.in_elements, e.out_elements);
    const std::int64_t bytes = elements > limits::parameters ? 0 : elements * bytes_of_type(dtype);
    if (op.empty() || bytes <= 0 || e.group_size < 2 || e.group_size > limits::world)
      return leave("collectives that do not say what they are");
    const Point point{
        "collective",
        {{"op", op}, {"dtype", dtype}, {"group", "trace"}, {"tier", options_.tier.empty() ? "nvlink" : options_.tier}},
        {{"bytes", bytes}, {"ranks", e.group_size}}};
    by_collective_[point].push_back(1e-6 * e.duration);
  }

  bool beside_collective(const Kernel& k) const {
    // The collectives, by start; none of them is longer than longest_.
    auto at = std::lower_bound(collectives_.begin(), collectives_.end(), std::pair{k.start - longest_, 0.0});
    for (; at != collectives_.end() && at->first < k.end; ++at) {
      if (at->second > k.start) return true;
    }
    return false;
  }

  /// Kernels of one operator call are summed; calls beside a collective are slower and left out.
  void shapes() {
    std::sort(collectives_.begin(), collectives_.end());
    for (const auto& [start, end] : collectives_) longest_ = std::max(longest_, end - start);
    struct Call {
      double seconds = 0;
      bool beside = false;
    };
    std::unordered_map<std::int64_t, Call> calls;
    double other = 0;
    std::int64_t others = 0;
    for (const Kernel& k : kernels_) {
      if (!operators_.contains(k.id)) {
        other += k.end - k.start;
        ++others;
        continue;
      }
      Call& call = calls[k.id];
      call.seconds += 1e-6 * (k.end - k.start);
      call.beside = call.beside || beside_collective(k);
    }
    std::map<Point, std::vector<double>> by_point;
    for (const auto& [id, call] : calls) {
      if (call.beside) {
        leave("products and attention beside a collective");
      } else if (call.seconds > 0) {
        by_point[operators_.at(id).point].push_back(call.seconds);
      }
    }
    for (auto& [point, times] : by_point) add(point, times, 0.5);
    if (others > 0) {
      leave("kernels of other operators", others);
      result_.facts.push_back(fmt::format("kernels of other operators: {:.1f} ms", 1e-3 * other));
    }
  }

  void collectives() {
    for (auto& [point, times] : by_collective_) add(point, times, 0.1);
  }

  void add(const Point& point, std::vector<double>& times, double share) {
    Sample sample;
    sample.point = point;
    sample.time_s = quantile(times, share);
    sample.low_s = times.front();
    sample.high_s = quantile(times, 0.9);
    sample.high_s = std::max(sample.high_s, sample.time_s);
    sample.repetitions = static_cast<int>(times.size());
    if (point.kind == "collective") sample.note = "10th percentile: a collective's kernel waits for its peers";
    if (!is_possible_time(sample.time_s)) return leave("events with no usable time");
    sample.source = path_;
    result_.samples.push_back(std::move(sample));
  }

  /// When does no kernel run at all, and how closely do kernels of one stream follow each other?
  void gaps() {
    if (busy_.empty()) return;
    std::sort(busy_.begin(), busy_.end(), [](const Kernel& a, const Kernel& b) { return a.start < b.start; });
    const double first = busy_.front().start;
    double idle = 0, end = first;
    std::unordered_map<std::int64_t, double> last;
    std::vector<double> near;
    for (const Kernel& k : busy_) {
      idle += std::max(0.0, k.start - end);
      end = std::max(end, k.end);
      const auto [previous, fresh] = last.try_emplace(k.stream, k.end);
      // A full queue: the next kernel starts within five microseconds.
      const double gap = k.start - previous->second;
      if (!fresh && gap > 0 && gap < 5) near.push_back(1e-6 * gap);
      previous->second = std::max(previous->second, k.end);
    }
    result_.facts.push_back(fmt::format("span {:.1f} ms, of which no kernel ran for {:.1f} ms ({:.1f} %)",
                                        1e-3 * (end - first), 1e-3 * idle, 100 * idle / std::max(1e-9, end - first)));
    if (near.size() >= 20) add({"host", {{"op", "kernel_gap"}}, {}}, near, 0.5);
  }

  std::string path_;
  const ImportOptions& options_;
  Imported result_;
  std::unordered_map<std::int64_t, Operator> operators_;
  std::vector<Kernel> kernels_, busy_;
  std::vector<std::pair<double, double>> collectives_;
  std::map<Point, std::vector<double>> by_collective_;
  double longest_ = 0;
};

}  // namespace

Result<Imported> import_kineto(const std::string& path, const ImportOptions& options) {
  Collector collector(path, options);
  const TraceEnd end = read_trace(
      path, [&](const TraceEvent& event) { collector.event(event); },
      [&](const std::string& name, std::int64_t multiprocessors, std::int64_t memory) {
        collector.property(name, multiprocessors, memory);
      });
  const auto file = std::make_shared<SourceFile>(SourceFile{path, {}});
  if (end.events == 0) {
    return Diagnostic{Severity::error,
                      "import.empty",
                      {file, 0, 0, 1, {}},
                      "there are no trace events in this file",
                      {},
                      "torch.profiler's export_chrome_trace writes them, with record_shapes=True"};
  }
  Diagnostics diagnostics;
  if (!end.complete) {
    diagnostics.push_back(
        {Severity::warning,
         "import.cut",
         {file, 0, 0, 1, {}},
         fmt::format("the trace is damaged after {} events: {}; those before are used", end.events, end.reason),
         {},
         {}});
  }
  return {collector.finish(), std::move(diagnostics)};
}

}  // namespace plimsoll::calibrate
