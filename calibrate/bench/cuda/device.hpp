// CUDA's resources as values that free themselves, and its errors as exceptions.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "calibrate/bench/backend.hpp"

namespace plimsoll::calibrate::cuda {

/// @throws MachineError naming `what`; Unsupported where memory does not suffice
void check(cudaError_t code, const char* what);

/// Device memory by plain cudaMalloc.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* get() const { return data_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Random bf16 in [-1, 1): products on zeros run faster than on data.
Buffer random_bf16(std::int64_t elements, unsigned seed, cudaStream_t stream);
Buffer random_fp32(std::int64_t elements, unsigned seed, cudaStream_t stream);

class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  void wait() const;

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event();
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&&) = delete;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) const;
  cudaEvent_t get() const { return event_; }
  /// Seconds from `begin` to this one; both have been reached.
  double since(const Event& begin) const;

 private:
  cudaEvent_t event_ = nullptr;
};

using Launch = std::function<void(cudaStream_t)>;

/// The upper of the two middle values of an even number; 0 of none.
double median(std::vector<double> values);

/// A kernel's rest before it, over what ran last: back to back, products draw so much power that clocks fall by a quarter
/// (measured on H200), which a step at usual duty does not see.
constexpr double rest_over_work = 1.5;

/// Times launches one by one between two events, the L2 cache flushed before each.
/// @param calls launches between the events (back to back, not flushed between); the time is divided by it
class TimedLaunch : public Work {
 public:
  TimedLaunch(Launch launch, bool flush = true, int calls = 1);
  std::vector<double> run(int count) override;
  std::map<std::string, double> figures() const override { return figures_; }
  void figure(const std::string& name, double value) { figures_[name] = value; }

 private:
  Launch launch_;
  bool flush_;
  int calls_;
  double rest_s_ = 0;  ///< before each launch
  std::map<std::string, double> figures_;
};

/// Seconds of one of `calls` launches back to back, queued behind a delay of the device so that the host's own time is not in
/// theirs.  @param align runs between the delay and the clock, to line up ranks; may be empty
double queued_seconds(const Stream& stream, double delay_us, const Launch& align, const Launch& launch, int calls);

/// The same as a point's work, on the main stream.
class TimedQueue : public Work {
 public:
  TimedQueue(Launch launch, int calls, double delay_us, Launch align = {})
      : launch_(std::move(launch)), align_(std::move(align)), calls_(calls), delay_us_(delay_us) {}
  std::vector<double> run(int count) override;

 private:
  Launch launch_, align_;
  int calls_;
  double delay_us_;
};

/// The stream that everything is measured on, and the buffer that flushes the L2 cache; one a process.
const Stream& main_stream();
void flush_cache(cudaStream_t stream);
/// `bytes` of unpinned host memory that no cache of the processor holds: the next part of an arena larger than those caches,
/// whose pages this process has touched.  Parts come round again, so that a copy has the arena's other bytes between two of
/// them.  @throws Unsupported beyond half of the arena
void* cold_pages(std::size_t bytes);
/// Frees what main_stream, flush_cache and cold_pages hold.
void release_shared();

}  // namespace plimsoll::calibrate::cuda
