// Pairs at once (calibrate/bench/cuda/pairs.hpp).
//
// Alone, one call of a takes t_a, one of b t_b.  n_a and n_b calls with n_a t_a = n_b t_b are queued on two streams behind a
// delay and start together; they end at T_a and T_b.  Say T_a <= T_b: a was never alone, so that its slowdown is
// s_a = T_a / (n_a t_a); after T_a, b ran alone and made (T_b - T_a) / t_b calls, so that during T_a it made the rest and
// s_b = T_a / (t_b (n_b - (T_b - T_a) / t_b)).
#include "calibrate/bench/cuda/pairs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "calibrate/bench/cuda/kernels.hpp"
#include "calibrate/bench/cuda/points.hpp"

namespace plimsoll::calibrate::cuda {
namespace {

constexpr double alone_s = 0.012;  ///< of each side: several calls of each
constexpr std::int64_t collective_bytes = std::int64_t{256} << 20;

Launch member(const std::string& name, const char* group, Nccl* nccl) {
  Point point;
  long long m = 0, n = 0, k = 0;
  if (std::sscanf(name.c_str(), "gemm_%lld_%lld_%lld", &m, &n, &k) == 3) {
    point = {"gemm", {{"layout", "forward"}, {"dtype", "bf16"}}, {{"m", m}, {"n", n}, {"k", k}}};
    return prepare_gemm(point).launch;
  }
  if (name == "attention") {
    point = {"attention",
             {{"direction", "forward"}},
             {{"batch", 64}, {"kv_batch", 64}, {"length", 4096}, {"head_dim", 128}}};
    return prepare_attention(point).launch;
  }
  if (name == "grouped_gemm") {
    point = {"gemm_grouped", {}, {{"groups", 8}, {"m", 16384}, {"n", 3584}, {"k", 1024}}};
    return prepare_grouped_gemm(point).launch;
  }
  if (name == "vectorized") {
    point = {"kernel", {{"op", "vectorized"}}, {{"elements", std::int64_t{1} << 27}}};
    return prepare_kernel(point).launch;
  }
  if (name == "copy") {
    const std::size_t bytes = std::size_t{64} << 20;
    void* host = nullptr;
    check(cudaMallocHost(&host, bytes), "cudaMallocHost");
    const std::shared_ptr<void> pinned(host, [](void* p) { cudaFreeHost(p); });
    const auto device = std::make_shared<Buffer>(bytes);
    return [=](cudaStream_t stream) {
      check(cudaMemcpyAsync(device->get(), pinned.get(), bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpy");
    };
  }
  if (!nccl) throw Unsupported("collectives need several ranks");
  return nccl->launch(name, collective_bytes, "bf16", group);
}

class Pair : public Work {
 public:
  Pair(Launch first, Launch second, Nccl* nccl, Ranks& ranks)
      : first_(std::move(first)), second_(std::move(second)), nccl_(nccl), ranks_(ranks) {
    queue(first_, 2, a_);
    queue(second_, 2, b_);  // warm
    alone_first_ = ranks_.maximum(alone(first_, a_));
    alone_second_ = ranks_.maximum(alone(second_, b_));
  }

  std::vector<double> run(int count) override {
    const int calls_first = calls(alone_first_), calls_second = calls(alone_second_);
    std::vector<double> times;
    for (int i = 0; i < count; ++i) {
      const Event start;
      const Event end_first;
      const Event end_second;
      launch_delay(1500, a_.get());
      if (nccl_) nccl_->align(a_.get());
      start.record(a_.get());
      check(cudaStreamWaitEvent(b_.get(), start.get(), 0), "cudaStreamWaitEvent");
      for (int call = 0; call < std::max(calls_first, calls_second); ++call) {
        if (call < calls_first) first_(a_.get());
        if (call < calls_second) second_(b_.get());
      }
      end_first.record(a_.get());
      end_second.record(b_.get());
      a_.wait();
      b_.wait();
      // Clocks move with the power drawn: alone, again, right beside it.
      alone_first_ = ranks_.maximum(alone(first_, a_));
      alone_second_ = ranks_.maximum(alone(second_, b_));
      const auto [slow_first, slow_second] =
          slowdowns(end_first.since(start), end_second.since(start), calls_first, calls_second);
      first_slowdowns_.push_back(slow_first);
      second_slowdowns_.push_back(slow_second);
      times.push_back(slow_first * alone_first_);
    }
    return times;
  }

  std::map<std::string, double> figures() const override {
    return {{"alone_first_s", alone_first_},
            {"alone_second_s", alone_second_},
            {"slowdown_first", middle(first_slowdowns_)},
            {"slowdown_second", middle(second_slowdowns_)}};
  }

 private:
  static double middle(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values.empty() ? 0 : values[values.size() / 2];
  }
  static int calls(double one_s) { return std::clamp(static_cast<int>(alone_s / one_s + 0.5), 1, 200); }

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

  double alone(const Launch& launch, const Stream& stream) {
    std::vector<double> times;
    for (int i = 0; i < 3; ++i) {
      const Event begin;
      const Event end;
      launch_delay(300, stream.get());
      if (nccl_) nccl_->align(stream.get());
      begin.record(stream.get());
      for (int call = 0; call < 6; ++call) launch(stream.get());
      end.record(stream.get());
      stream.wait();
      times.push_back(end.since(begin) / 6);
    }
    return middle(times);
  }

  Launch first_, second_;
  Nccl* nccl_;
  Ranks& ranks_;
  Stream a_, b_;
  double alone_first_ = 0, alone_second_ = 0;
  std::vector<double> first_slowdowns_, second_slowdowns_;
};

}  // namespace

std::unique_ptr<Work> prepare_pair(const Point& point, Nccl* nccl, Ranks& ranks) {
  Launch first = member(point.label("first"), "world", nccl);
  Launch second = member(point.label("second"), "second", nccl);
  main_stream().wait();
  return std::make_unique<Pair>(std::move(first), std::move(second), nccl, ranks);
}

}  // namespace plimsoll::calibrate::cuda
