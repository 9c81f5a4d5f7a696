// Copies between host and device, and what the host itself costs: launches, events, waits (calibrate/bench/cuda/points.hpp).
#include <fmt/format.h>

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "calibrate/bench/cuda/kernels.hpp"
#include "calibrate/bench/cuda/points.hpp"

namespace plimsoll::calibrate::cuda {
namespace {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Pinned host memory, each page written.
std::shared_ptr<void> pinned_memory(std::size_t bytes) {
  void* data = nullptr;
  check(cudaMallocHost(&data, bytes), "cudaMallocHost");
  for (std::size_t i = 0; i < bytes; i += 61) static_cast<unsigned char*>(data)[i] = static_cast<unsigned char>(i);
  return {data, [](void* p) { cudaFreeHost(p); }};
}

/// Timed by the host's clock, the stream empty before and after each batch.
class TimedHost : public Work {
 public:
  /// @param action what is timed, `calls` times; @param settle what brings the device back to rest, not timed
  TimedHost(std::function<void()> action, int calls, std::function<void()> settle)
      : action_(std::move(action)), settle_(std::move(settle)), calls_(calls) {}
  std::vector<double> run(int count) override {
    std::vector<double> times;
    for (int i = 0; i < count; ++i) {
      settle_();
      const auto start = Clock::now();
      for (int call = 0; call < calls_; ++call) action_();
      times.push_back(since(start) / calls_);
    }
    settle_();
    return times;
  }

 private:
  std::function<void()> action_, settle_;
  int calls_;
};

/// The cores on which this process may run, to be on one at a time; afterwards all of them again.
class Cores {
 public:
  Cores() {
    CPU_ZERO(&allowed_);
    sched_getaffinity(0, sizeof allowed_, &allowed_);
    for (std::size_t core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &allowed_)) cores_.push_back(core);
    }
  }
  ~Cores() { sched_setaffinity(0, sizeof allowed_, &allowed_); }
  Cores(const Cores&) = delete;
  Cores& operator=(const Cores&) = delete;
  std::size_t count() const { return cores_.size(); }
  /// @param index of the core, beginning anew after the last
  void visit(std::size_t index) const {
    if (cores_.empty()) return;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cores_[index % cores_.size()], &one);
    sched_setaffinity(0, sizeof one, &one);
  }

 private:
  cpu_set_t allowed_;
  std::vector<std::size_t> cores_;
};

/// A copy from or to pageable memory holds the host: its own clock tells how long.  The processor moves every byte through a
/// staging buffer, out of or into memory that its caches do not hold, so that it is as fast as the core that it happens to be on
/// at that moment: on two H200 of a virtual machine 6.9 to 8.9 GB/s to the device and 11.8 to 15.5 back.  A round goes over
/// sixteen cores, the same for every size, and the next round over the next sixteen; a time is the median of what one core
/// copies within two milliseconds, or of one longer copy.
class PageableCopy : public Work {
 public:
  /// @param copy `bytes` of host memory
  /// @param round from 0 on
  PageableCopy(std::function<void(void*, cudaStream_t)> copy, std::size_t bytes, std::size_t round)
      : copy_(std::move(copy)), bytes_(bytes), first_core_(round * cores_a_round) {
    // Ranks that copy at once are on cores of their own.
    int device = 0, devices = 1;
    check(cudaGetDevice(&device), "cudaGetDevice");
    check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
    first_core_ += cores_.count() * static_cast<std::size_t>(device) / static_cast<std::size_t>(devices);
  }
  bool once() const override { return true; }
  std::vector<double> run(int /*count*/) override {
    std::vector<double> times;
    for (std::size_t i = 0; i < cores_a_round; ++i) {
      cores_.visit(first_core_ + i);
      std::vector<double> here;
      for (const auto arrived = Clock::now(); here.empty() || since(arrived) < core_s;) {
        void* const pages = cold_pages(bytes_);
        const auto start = Clock::now();
        copy_(pages, main_stream().get());
        main_stream().wait();
        here.push_back(since(start));
      }
      times.push_back(median(std::move(here)));
    }
    return times;
  }

 private:
  static constexpr std::size_t cores_a_round = 16;
  static constexpr double core_s = 0.002;

  std::function<void(void*, cudaStream_t)> copy_;
  std::size_t bytes_;
  Cores cores_;
  std::size_t first_core_;
};

/// AdamW over fp32 arrays, all cores, as an offloaded optimizer does it.
std::unique_ptr<Work> cpu_adam(std::int64_t elements) {
  const auto n = static_cast<std::size_t>(elements);
  const auto state = std::make_shared<std::array<std::vector<float>, 4>>();
  for (auto& part : *state) part.assign(n, 0.01F);
  return std::make_unique<TimedHost>(
      [state, n] {
        const auto slice = [&](std::size_t first, std::size_t last) {
          auto& [p, g, m, v] = *state;
          for (std::size_t i = first; i < last; ++i) {
            m[i] = 0.9F * m[i] + 0.1F * g[i];
            v[i] = 0.999F * v[i] + 0.001F * g[i] * g[i];
            p[i] -= 1e-4F * m[i] / (std::sqrt(v[i]) + 1e-8F);
          }
        };
        const std::size_t workers = std::max(1U, std::thread::hardware_concurrency());
        std::vector<std::jthread> threads;
        for (std::size_t w = 0; w < workers; ++w) threads.emplace_back(slice, n * w / workers, n * (w + 1) / workers);
      },
      1, [] {});
}

}  // namespace

std::unique_ptr<Work> prepare_copy(const Point& point) {
  const auto bytes = static_cast<std::size_t>(point.size("bytes"));
  const bool to_device = point.label("direction") == "host_to_device";
  const auto device = std::make_shared<Buffer>(bytes);
  const auto copy = [=](void* host, cudaStream_t stream) {
    const auto code = to_device ? cudaMemcpyAsync(device->get(), host, bytes, cudaMemcpyHostToDevice, stream)
                                : cudaMemcpyAsync(host, device->get(), bytes, cudaMemcpyDeviceToHost, stream);
    check(code, "cudaMemcpy");
  };
  if (point.label("memory") == "pinned") {
    const std::shared_ptr<void> host = pinned_memory(bytes);
    return std::make_unique<TimedLaunch>([=](cudaStream_t stream) { copy(host.get(), stream); }, false,
                                         bytes < (1U << 20)   ? 16
                                         : bytes < (1U << 26) ? 4
                                                              : 1);
  }
  const auto round = static_cast<std::size_t>(std::max<std::int64_t>(1, point.size("round")));
  return std::make_unique<PageableCopy>(copy, bytes, round - 1);
}

std::unique_ptr<Work> prepare_host_cost(const Point& point) {
  const std::string op = point.label("op");
  const cudaStream_t stream = main_stream().get();
  const auto settle = [] { main_stream().wait(); };
  if (op == "cpu_adam") return cpu_adam(point.size("elements"));
  // What each of a row of kernels costs in a full queue.
  if (op == "kernel_gap") return std::make_unique<TimedQueue>(launch_empty, 200, 3000);
  // What the two events around a launch add: an empty kernel timed as every kernel is.
  if (op == "timed_empty") return std::make_unique<TimedLaunch>(launch_empty);
  // Up to 200 launches wait behind a delay, so that the device never makes the host wait.
  if (op == "launch") {
    return std::make_unique<TimedHost>([stream] { launch_empty(stream); }, 200,
                                       [stream, settle] {
                                         settle();
                                         launch_delay(3000, stream);
                                       });
  }
  if (op == "launch_latency" || op == "sync") {
    // launch_latency: call, kernel, and the host's wait; sync: the wait alone on an idle stream.
    const bool launch = op == "launch_latency";
    return std::make_unique<TimedHost>(
        [stream, launch] {
          if (launch) launch_empty(stream);
          main_stream().wait();
        },
        1, settle);
  }
  if (op == "event" || op == "stream_wait") {
    const auto event = std::make_shared<Event>();
    const auto other = std::make_shared<Stream>();
    const bool wait = op == "stream_wait";
    return std::make_unique<TimedHost>(
        [=] {
          event->record(stream);
          if (wait) check(cudaStreamWaitEvent(other->get(), event->get(), 0), "cudaStreamWaitEvent");
        },
        200, settle);
  }
  throw Unsupported(fmt::format("there is no cost {}", op));
}

double used_bytes() {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<double>(total - free);
}

namespace {
class FixedBytes : public Work {
 public:
  explicit FixedBytes(std::function<std::shared_ptr<void>()> acquire) : acquire_(std::move(acquire)) {}
  std::vector<double> run(int /*count*/) override {
    main_stream();  // with bench's own buffers, which are no part of it
    const double before = used_bytes();
    const auto start = Clock::now();
    held_ = acquire_();
    const double seconds = since(start);
    bytes_ = used_bytes() - before;
    return {std::max(seconds, 1e-9)};
  }
  std::map<std::string, double> figures() const override { return {{"bytes", bytes_}}; }
  bool once() const override { return true; }

 private:
  std::function<std::shared_ptr<void>()> acquire_;
  std::shared_ptr<void> held_;
  double bytes_ = 0;
};
}  // namespace

std::unique_ptr<Work> prepare_fixed_bytes(const std::function<std::shared_ptr<void>()>& acquire) {
  return std::make_unique<FixedBytes>(acquire);
}

}  // namespace plimsoll::calibrate::cuda
