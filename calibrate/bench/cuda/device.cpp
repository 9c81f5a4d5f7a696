// Memory, streams, events and timing (calibrate/bench/cuda/device.hpp).
#include "calibrate/bench/cuda/device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "calibrate/bench/cuda/kernels.hpp"
#include "planner/base/machine_error.hpp"

namespace plimsoll::calibrate::cuda {
namespace {

constexpr std::size_t host_arena_bytes = std::size_t{1} << 30;  // more than any processor's last cache
constexpr std::size_t page_bytes = 4096;
constexpr std::size_t flush_bytes = std::size_t{256} << 20;  // several times the L2 of any device so far

struct Shared {
  Stream stream;
  Buffer flush{flush_bytes};
  std::vector<unsigned char> host_arena;
  std::size_t next_page = 0;
};
std::unique_ptr<Shared>& shared() {
  static std::unique_ptr<Shared> instance;
  if (!instance) instance = std::make_unique<Shared>();
  return instance;
}

}  // namespace

void check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  const std::string text = fmt::format("{}: {}", what, cudaGetErrorString(code));
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // not sticky: the next point may need less
    throw Unsupported(text);
  }
  throw MachineError(text);
}

Buffer::Buffer(std::size_t bytes) : bytes_(bytes) {
  if (bytes > 0) check(cudaMalloc(&data_, bytes), "cudaMalloc");
}
Buffer::~Buffer() {
  if (data_) cudaFree(data_);
}
Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Buffer random_bf16(std::int64_t elements, unsigned seed, cudaStream_t stream) {
  Buffer buffer(static_cast<std::size_t>(elements) * 2);
  fill_random_bf16(buffer.get(), elements, seed, stream);
  return buffer;
}
Buffer random_fp32(std::int64_t elements, unsigned seed, cudaStream_t stream) {
  Buffer buffer(static_cast<std::size_t>(elements) * 4);
  fill_random_fp32(buffer.get(), elements, seed, stream);
  return buffer;
}

Stream::Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate"); }
Stream::~Stream() {
  if (stream_) cudaStreamDestroy(stream_);
}
void Stream::wait() const { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

Event::Event() { check(cudaEventCreate(&event_), "cudaEventCreate"); }
Event::~Event() {
  if (event_) cudaEventDestroy(event_);
}
Event::Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
void Event::record(cudaStream_t stream) const { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
double Event::since(const Event& begin) const {
  float ms = 0;
  check(cudaEventElapsedTime(&ms, begin.event_, event_), "cudaEventElapsedTime");
  return 1e-3 * static_cast<double>(ms);
}

TimedLaunch::TimedLaunch(Launch launch, bool flush, int calls)
    : launch_(std::move(launch)), flush_(flush), calls_(calls) {}

std::vector<double> TimedLaunch::run(int count) {
  const cudaStream_t stream = main_stream().get();
  std::vector<Event> begin(static_cast<std::size_t>(count));
  std::vector<Event> end(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < begin.size(); ++i) {
    if (rest_s_ > 0) launch_delay(1e6 * rest_s_, stream);
    if (flush_) flush_cache(stream);
    begin[i].record(stream);
    for (int call = 0; call < calls_; ++call) launch_(stream);
    end[i].record(stream);
  }
  main_stream().wait();
  check(cudaGetLastError(), "a kernel");
  std::vector<double> times;
  for (std::size_t i = 0; i < begin.size(); ++i) times.push_back(end[i].since(begin[i]) / calls_);
  rest_s_ = flush_ ? rest_over_work * calls_ * times.back() : 0;
  return times;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double queued_seconds(const Stream& stream, double delay_us, const Launch& align, const Launch& launch, int calls) {
  const Event begin;
  const Event end;
  launch_delay(delay_us, stream.get());
  if (align) align(stream.get());
  begin.record(stream.get());
  for (int call = 0; call < calls; ++call) launch(stream.get());
  end.record(stream.get());
  stream.wait();
  return end.since(begin) / calls;
}

std::vector<double> TimedQueue::run(int count) {
  std::vector<double> times;
  times.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) times.push_back(queued_seconds(main_stream(), delay_us_, align_, launch_, calls_));
  return times;
}

const Stream& main_stream() { return shared()->stream; }
void flush_cache(cudaStream_t stream) {
  const Buffer& buffer = shared()->flush;
  check(cudaMemsetAsync(buffer.get(), 0, buffer.bytes(), stream), "cudaMemset");
}
void* cold_pages(std::size_t bytes) {
  Shared& all = *shared();
  if (all.host_arena.empty()) {
    all.host_arena.resize(host_arena_bytes);
    // Values that differ: pages of zeros could be one page.
    for (std::size_t i = 0; i < host_arena_bytes; i += 61) all.host_arena[i] = static_cast<unsigned char>(i);
  }
  if (bytes > host_arena_bytes / 2) throw Unsupported("the copy is too long to come out of cold memory each time");
  if (all.next_page + bytes > host_arena_bytes) all.next_page = 0;
  void* const part = all.host_arena.data() + all.next_page;
  all.next_page += (bytes + page_bytes - 1) / page_bytes * page_bytes;
  return part;
}
void release_shared() { shared().reset(); }

}  // namespace plimsoll::calibrate::cuda
