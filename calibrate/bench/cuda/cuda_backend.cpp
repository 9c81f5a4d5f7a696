// The CUDA backend: one device a process, by local rank (calibrate/bench/backend.hpp); and what probe_devices() finds.
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <iterator>
#include <string>

#include "calibrate/bench/cuda/kernels.hpp"
#include "calibrate/bench/cuda/management.hpp"
#include "calibrate/bench/cuda/nccl.hpp"
#include "calibrate/bench/cuda/pairs.hpp"
#include "calibrate/bench/cuda/points.hpp"
#include "calibrate/bench/machine_name.hpp"
#include "calibrate/probe/probe.hpp"
#include "planner/base/machine_error.hpp"

namespace plimsoll::calibrate {
namespace cuda {
namespace {

std::string bus_id(int device) {
  std::array<char, 32> text{};
  check(cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), device), "cudaDeviceGetPCIBusId");
  return text.data();
}

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

/// Several ranks on one device share it: the copy of all ranks still means something, NCCL refuses.
class CudaBackend : public Backend {
 public:
  explicit CudaBackend(Ranks& ranks) : ranks_(ranks) {
    const int devices = device_count();
    if (devices == 0) {
      throw MachineError(fmt::format("there is no CUDA device here ({}); --backend host measures this machine's cores",
                                     cudaGetErrorString(cudaGetLastError())));
    }
    const int device = ranks.local_rank() % devices;
    management_.select(bus_id(device));
    const double before = management_.used_bytes();
    check(cudaSetDevice(device), "cudaSetDevice");
    check(cudaFree(nullptr), "the CUDA context");
    if (before >= 0) context_bytes_ = management_.used_bytes() - before;
    check(cudaGetDeviceProperties(&properties_, device), "cudaGetDeviceProperties");
    device_ = device;
    if (ranks.world() > 1) nccl_ = std::make_unique<Nccl>(ranks);
  }
  ~CudaBackend() override {
    nccl_.reset();
    release_shared();
  }
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  Header header() const override {
    Header h;
    h.device_name = static_cast<const char*>(properties_.name);
    h.device = device_key(h.device_name, static_cast<std::int64_t>(properties_.totalGlobalMem));
    // Virtual machines of one image agree in name and bus: the device's own identifier tells them apart.
    h.machine = machine_name(
        {h.device_name, std::string(std::begin(properties_.uuid.bytes), std::end(properties_.uuid.bytes))});
    h.backend = "cuda";
    h.date = today();
    h.versions = fmt::format("driver {}, {}, {}", management_.driver(), library_versions(), nccl_version());
    if (const char* nvls = std::getenv("NCCL_NVLS_ENABLE")) h.versions += fmt::format(" (NCCL_NVLS_ENABLE={})", nvls);
    h.multiprocessors = properties_.multiProcessorCount;
    h.cache_bytes = properties_.l2CacheSize;
    h.world = ranks_.world();
    return h;
  }

  std::unique_ptr<Work> prepare(const Point& point) override {
    if (point.kind == "gemm") return timed(prepare_gemm(point));
    if (point.kind == "gemm_grouped") return timed(prepare_grouped_gemm(point));
    if (point.kind == "attention") return timed(prepare_attention(point));
    if (point.kind == "kernel") return timed(prepare_kernel(point));
    if (point.kind == "copy") return prepare_copy(point);
    if (point.kind == "host") return prepare_host_cost(point);
    if (point.kind == "pair") return prepare_pair(point, nccl_.get(), ranks_);
    if (point.kind == "fixed_bytes") return fixed(point.label("what"));
    if (point.kind == "collective" && nccl_) return nccl_->prepare(point);
    throw Unsupported(fmt::format("the cuda backend does not measure {}", point.kind));
  }

  Conditions conditions() override {
    Conditions now;
    now.clock_mhz = management_.clock_mhz();
    const std::string throttling = management_.throttling();
    if (!throttling.empty()) now.doubt = "clocks held down by " + throttling;
    if (const int processes = management_.processes(); processes > 1)
      now.doubt += fmt::format("{}{} other processes on the device", now.doubt.empty() ? "" : "; ", processes - 1);
    return now;
  }

  /// Errors of a kernel stay with the context; those of a refused call do not.
  bool lost() const override {
    cudaGetLastError();
    return cudaDeviceSynchronize() != cudaSuccess;
  }

 private:
  static std::unique_ptr<Work> timed(Prepared prepared) {
    auto work = std::make_unique<TimedLaunch>(std::move(prepared.launch));
    if (prepared.bytes > 0) work->figure("bytes_moved", prepared.bytes);
    return work;
  }

  std::unique_ptr<Work> fixed(const std::string& what) {
    if (what == "context") {
      if (context_bytes_ <= 0) throw Unsupported("NVML is missing, which alone knows memory without a context");
      return std::make_unique<Known>(context_bytes_);
    }
    if (what == "communicator" && nccl_) return prepare_fixed_bytes([this] { return nccl_->fresh_communicator(); });
    if (what == "gemm_workspace") {
      return prepare_fixed_bytes([]() -> std::shared_ptr<void> {
        const Point point{"gemm", {{"layout", "forward"}, {"dtype", "bf16"}}, {{"m", 256}, {"n", 256}, {"k", 256}}};
        const auto held = std::make_shared<Prepared>(prepare_gemm(point));
        held->launch(main_stream().get());
        main_stream().wait();
        return held;
      });
    }
    throw Unsupported(fmt::format("no fixed bytes are called {}", what));
  }

  class Known : public Work {
   public:
    explicit Known(double bytes) : bytes_(bytes) {}
    std::vector<double> run(int /*count*/) override { return {1e-9}; }
    std::map<std::string, double> figures() const override { return {{"bytes", bytes_}}; }
    bool once() const override { return true; }

   private:
    double bytes_;
  };

  Ranks& ranks_;
  Management management_;
  int device_ = 0;
  cudaDeviceProp properties_{};
  double context_bytes_ = -1;
  std::unique_ptr<Nccl> nccl_;
};

}  // namespace
}  // namespace cuda

std::unique_ptr<Backend> make_cuda_backend(Ranks& ranks) { return std::make_unique<cuda::CudaBackend>(ranks); }

std::optional<ProbedDevices> probe_devices() {
  const int count = cuda::device_count();
  if (count == 0) return {};
  ProbedDevices result;
  cuda::Management management;
  result.versions =
      fmt::format("driver {}, {}, {}", management.driver(), cuda::library_versions(), cuda::nccl_version());
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    cuda::check(cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties");
    ProbedDevice device;
    device.name = static_cast<const char*>(properties.name);
    device.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
    device.compute_capability = 10 * properties.major + properties.minor;
    device.multiprocessors = properties.multiProcessorCount;
    if (management.select(cuda::bus_id(i))) {
      // Two transfers a clock.
      device.memory_bytes_per_s = 2 * 1e6 * management.memory_clock_mhz() * management.bus_width_bits() / 8.0;
      device.nvlinks = management.nvlinks();
      device.nvlink_bytes_per_s = management.nvlink_bytes_per_s();
      device.pcie_generation = management.pcie_generation();
      device.pcie_width = management.pcie_width();
      device.foreign_processes = std::max(0, management.processes());
    }
    result.devices.push_back(device);
  }
  return result;
}

}  // namespace plimsoll::calibrate
