// Pairs at once (calibrate/bench/cuda/pairs.hpp).
//
// In full queues: alone, one call of a takes t_a, one of b t_b.  n_a and n_b calls with n_a t_a = n_b t_b are queued on two
// streams behind a delay and start together; they end at T_a and T_b.  Say T_a <= T_b: a was never alone, so that its slowdown
// is s_a = T_a / (n_a t_a); after T_a, b ran alone and made (T_b - T_a) / t_b calls, so that during T_a it made the rest and
// s_b = T_a / (t_b (n_b - (T_b - T_a) / t_b)).  A collective's factor then holds its wait for free SMs behind each kernel.
//
// Resident: one long call of b has its SMs already, for a lead of l, when the calls of a begin, and ends u after that; the k-th
// of a is the last that ends by then, after e_k.  s_a = e_k / (k t_a), s_b = u / (t_b - l).
//
// Kernels one after the other for tens of milliseconds meet the power cap, beside a collective later than alone: what is timed
// alone right after them would be slow, and the slowdown too small (attention backward 1.04 for 1.21).  So the device rests
// before each, as before a kernel alone.
#include "calibrate/bench/cuda/pairs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "calibrate/bench/cuda/kernels.hpp"
#include "calibrate/bench/cuda/points.hpp"

namespace plimsoll::calibrate::cuda {
namespace {

constexpr double alone_s = 0.012;  ///< of each side: several calls of each
constexpr std::int64_t collective_bytes = std::int64_t{256} << 20;
constexpr std::int64_t least_resident_bytes = std::int64_t{1} << 30;
constexpr std::int64_t most_resident_bytes = std::int64_t{1} << 33;
/// Kernels, alone, that a resident collective must outlast: half of them, as slow as kernels become beside it, are timed.
constexpr double kernels_beside = 6;
constexpr double lead_us = 30;  ///< until a collective's blocks have their SMs
/// A collective beside kernels that stream memory lasts up to four times as long, measured in kernels of its time alone.
constexpr double longest_beside = 4;
constexpr std::int64_t streaming_elements = std::int64_t{1} << 27;

/// The compute that a member's name stands for: gemm_M_N_K, grouped_gemm[_GROUPS_M_N_K], attention[_backward][_LENGTH], or a
/// streaming kernel's own name.
Launch compute(const std::string& name) {
  long long a = 0, m = 0, n = 0, k = 0;
  if (std::sscanf(name.c_str(), "gemm_%lld_%lld_%lld", &m, &n, &k) == 3)
    return prepare_gemm({"gemm", {{"layout", "forward"}, {"dtype", "bf16"}}, {{"m", m}, {"n", n}, {"k", k}}}).launch;
  if (name.starts_with("attention")) {
    const bool backward = name.starts_with("attention_backward");
    long long length = 4096;
    std::sscanf(name.c_str(), backward ? "attention_backward_%lld" : "attention_%lld", &length);
    const std::int64_t batch = std::int64_t{64} * 4096 / length;
    return prepare_attention({"attention",
                              {{"direction", backward ? "backward" : "forward"}},
                              {{"batch", batch}, {"kv_batch", batch}, {"length", length}, {"head_dim", 128}}})
        .launch;
  }
  if (name.starts_with("grouped_gemm")) {
    if (std::sscanf(name.c_str(), "grouped_gemm_%lld_%lld_%lld_%lld", &a, &m, &n, &k) != 4)
      a = 8, m = 16384, n = 3584, k = 1024;
    return prepare_grouped_gemm({"gemm_grouped", {}, {{"groups", a}, {"m", m}, {"n", n}, {"k", k}}}).launch;
  }
  return prepare_kernel({"kernel", {{"op", name}}, {{"elements", streaming_elements}}}).launch;
}

bool is_collective(const std::string& name) {
  return name.starts_with("all_") || name == "reduce_scatter" || name == "broadcast";
}

Launch member(const std::string& name, const char* group, std::int64_t bytes, Nccl* nccl) {
  if (is_collective(name)) {
    if (!nccl) throw Unsupported("collectives need several ranks");
    return nccl->launch(name, bytes, "bf16", group);
  }
  if (name != "copy") return compute(name);
  const std::size_t size = std::size_t{64} << 20;
  void* host = nullptr;
  check(cudaMallocHost(&host, size), "cudaMallocHost");
  const std::shared_ptr<void> pinned(host, [](void* p) { cudaFreeHost(p); });
  const auto device = std::make_shared<Buffer>(size);
  return [=](cudaStream_t stream) {
    check(cudaMemcpyAsync(device->get(), pinned.get(), size, cudaMemcpyHostToDevice, stream), "cudaMemcpy");
  };
}

class Pair : public Work {
 public:
  Pair(Launch first, Launch second, bool resident, Nccl* nccl, Ranks& ranks)
      : first_(std::move(first)), second_(std::move(second)), resident_(resident), nccl_(nccl), ranks_(ranks) {
    queue(first_, 2, a_);
    queue(second_, 2, b_);  // warm
    time_alone();
    calls_beside_ = kernels_for(longest_beside * alone_second_ / alone_first_);
  }

  std::vector<double> run(int count) override {
    std::vector<double> times;
    for (int i = 0; i < count; ++i) {
      const auto [slow_first, slow_second] = resident_ ? beside_resident() : in_full_queues();
      first_slowdowns_.push_back(slow_first);
      second_slowdowns_.push_back(slow_second);
      times.push_back(slow_first * alone_first_);
    }
    return times;
  }

  std::map<std::string, double> figures() const override {
    return {{"alone_first_s", alone_first_},
            {"alone_second_s", alone_second_},
            {"slowdown_first", median(first_slowdowns_)},
            {"slowdown_second", median(second_slowdowns_)}};
  }

 private:
  static int calls(double one_s) { return std::clamp(static_cast<int>(std::lround(alone_s / one_s)), 1, 200); }

  std::pair<double, double> in_full_queues() {
    const int calls_first = calls(alone_first_), calls_second = calls(alone_second_);
    const Event start;
    const Event end_first;
    const Event end_second;
    begin_together(a_, start, b_);
    for (int call = 0; call < std::max(calls_first, calls_second); ++call) {
      if (call < calls_first) first_(a_.get());
      if (call < calls_second) second_(b_.get());
    }
    end_first.record(a_.get());
    end_second.record(b_.get());
    wait();
    busy_s_ = std::max(end_first.since(start), end_second.since(start));
    time_alone();
    return slowdowns(end_first.since(start), end_second.since(start), calls_first, calls_second);
  }

  std::pair<double, double> beside_resident() {
    const Event start;
    const Event begin_first;
    const std::vector<Event> end_first(static_cast<std::size_t>(calls_beside_));
    const Event end_second;
    begin_together(b_, start, a_);
    second_(b_.get());
    end_second.record(b_.get());
    launch_delay(lead_us, a_.get());
    begin_first.record(a_.get());
    for (const Event& end : end_first) {
      first_(a_.get());
      end.record(a_.get());
    }
    wait();
    const double lead = begin_first.since(start), both = end_second.since(start) - lead;
    std::size_t inside = 0;
    while (inside < end_first.size() && end_first[inside].since(begin_first) <= both) ++inside;
    busy_s_ = end_first.back().since(begin_first);
    time_alone();
    if (!ranks_.all(inside > 0 && inside < end_first.size()))
      throw Unsupported("the second of the pair did not begin before the first and end between two of its calls");
    // Next time only as many kernels as that took, and a few: the others would draw power for nothing.
    calls_beside_ = kernels_for(1.25 * ranks_.maximum(static_cast<double>(inside)));
    return {end_first[inside - 1].since(begin_first) / (static_cast<double>(inside) * alone_first_),
            both / std::max(0.1 * alone_second_, alone_second_ - lead)};
  }
  static int kernels_for(double count) { return std::clamp(static_cast<int>(count) + 2, 3, 400); }

  /// Both streams begin at `start`, which `leader` reaches behind a delay in which the queues fill, aligned with its peers.
  void begin_together(const Stream& leader, const Event& start, const Stream& other) {
    launch_delay(1500 + rest_us(), leader.get());
    if (nccl_) nccl_->align(leader.get());
    start.record(leader.get());
    check(cudaStreamWaitEvent(other.get(), start.get(), 0), "cudaStreamWaitEvent");
  }

  void wait() {
    a_.wait();
    b_.wait();
  }

  /// Alone, again, soon after: clocks move.  The second is a collective or a copy, during which a device nearly rests.
  void time_alone() {
    // Beside a resident an event follows each call, and takes time: so it does here.
    const int calls = resident_ ? 1 : 6;
    alone_second_ = ranks_.maximum(alone(second_, b_, calls, false));
    alone_first_ = ranks_.maximum(alone(first_, a_, calls, true));
  }

  /// How long the device rests from the kernels that ran last.
  double rest_us() const { return 1e6 * rest_over_work * busy_s_; }

  std::pair<double, double> slowdowns(double end_first, double end_second, int calls_first, int calls_second) const {
    const bool first_ends = end_first <= end_second;
    const double both = std::min(end_first, end_second), last = std::max(end_first, end_second);
    const double one_early = first_ends ? alone_first_ : alone_second_;
    const double one_late = first_ends ? alone_second_ : alone_first_;
    const int calls_early = first_ends ? calls_first : calls_second;
    const int calls_late = first_ends ? calls_second : calls_first;
    const double early = both / (calls_early * one_early);
    const double during = std::max(0.1, calls_late - (last - both) / one_late);
    const double late = both / (one_late * during);
    return first_ends ? std::pair{early, late} : std::pair{late, early};
  }

  void queue(const Launch& launch, int count, const Stream& stream) {
    for (int i = 0; i < count; ++i) launch(stream.get());
    stream.wait();
  }

  /// Seconds of one of `calls`, the middle of three.  @param kernel draws the power that the device must rest from
  double alone(const Launch& launch, const Stream& stream, int calls, bool kernel) {
    const Launch align = nccl_ ? Launch([this](cudaStream_t s) { nccl_->align(s); }) : Launch();
    std::vector<double> times;
    for (int i = 0; i < 3; ++i) {
      times.push_back(queued_seconds(stream, 300 + (kernel ? rest_us() : 0), align, launch, calls));
      if (kernel) busy_s_ = calls * times.back();
    }
    return median(times);
  }

  Launch first_, second_;
  bool resident_;
  Nccl* nccl_;
  Ranks& ranks_;
  Stream a_, b_;
  double alone_first_ = 0, alone_second_ = 0;
  double busy_s_ = 0;     ///< that kernels ran last
  int calls_beside_ = 0;  ///< of the first, while the resident second runs and a little longer
  std::vector<double> first_slowdowns_, second_slowdowns_;
};

}  // namespace

std::unique_ptr<Work> prepare_pair(const Point& point, Nccl* nccl, Ranks& ranks) {
  const bool resident = point.label("resident") == "second";
  std::int64_t bytes = resident ? least_resident_bytes : collective_bytes;
  // Ranks take every step together: one that has no memory left must not leave the others waiting in the next.
  const auto prepared = [&](const char* label, const char* group) {
    Launch launch;
    std::string why;
    try {
      launch = member(point.label(label), group, bytes, nccl);
      main_stream().wait();
    } catch (const Unsupported& error) {
      why = error.what();
    }
    if (!ranks.all(why.empty())) throw Unsupported(why.empty() ? "another rank could not prepare it" : why);
    return launch;
  };
  Launch first = prepared("first", "world");
  Launch second = prepared("second", "second");
  if (resident) {
    const Launch align = nccl ? Launch([nccl](cudaStream_t s) { nccl->align(s); }) : Launch();
    const auto seconds = [&](const Launch& launch) {
      launch(main_stream().get());  // warm
      return ranks.maximum(queued_seconds(main_stream(), 300, align, launch, 2));
    };
    const double needed_s = kernels_beside * seconds(first);
    for (double second_s = seconds(second); bytes < most_resident_bytes && second_s < needed_s; second_s *= 2)
      bytes *= 2;
    if (bytes > least_resident_bytes) second = prepared("second", "second");
  }
  return std::make_unique<Pair>(std::move(first), std::move(second), resident, nccl, ranks);
}

}  // namespace plimsoll::calibrate::cuda
