// NVML through dlopen (calibrate/bench/cuda/management.hpp): its functions are a C interface with numbered constants, stable
// across drivers; those used here are declared below with the names of the API reference.
#include "calibrate/bench/cuda/management.hpp"

#include <dlfcn.h>

#include <array>

namespace plimsoll::calibrate::cuda {
namespace {

constexpr int success = 0;
constexpr unsigned clock_sm = 1, clock_memory = 2;  // nvmlClockType_t
constexpr unsigned feature_enabled = 1;             // nvmlEnableState_t
constexpr unsigned most_links = 18;                 // NVML_NVLINK_MAX_LINKS
constexpr unsigned field_link_speed = 164;          // NVML_FI_DEV_NVLINK_LINK_SPEED_MBPS_COMMON... by link 0

struct Memory {
  unsigned long long total, free, used;
};

/// nvmlFieldValue_t.
struct FieldValue {
  unsigned field, scope;
  long long timestamp, latency;
  unsigned value_type;
  int status;
  union {
    double d;
    unsigned u;
    unsigned long long ull;
  } value;
};

/// Calls a function of the library; `otherwise` where it has none of that name.
template <class... Arguments>
int call(void* library, const char* name, Arguments... arguments) {
  if (!library) return -1;
  void* symbol = dlsym(library, name);
  if (!symbol) return -1;
  return reinterpret_cast<int (*)(Arguments...)>(symbol)(arguments...);
}

}  // namespace

Management::Management() {
  library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (library_ && call(library_, "nvmlInit_v2") != success) {
    dlclose(library_);
    library_ = nullptr;
  }
}

Management::~Management() {
  if (!library_) return;
  call(library_, "nvmlShutdown");
  dlclose(library_);
}

bool Management::select(const std::string& bus_id) {
  return call(library_, "nvmlDeviceGetHandleByPciBusId_v2", bus_id.c_str(), &device_) == success;
}

double Management::clock_mhz() const {
  unsigned mhz = 0;
  return device_ && call(library_, "nvmlDeviceGetClockInfo", device_, clock_sm, &mhz) == success ? mhz : 0;
}

double Management::memory_clock_mhz() const {
  unsigned mhz = 0;
  return device_ && call(library_, "nvmlDeviceGetMaxClockInfo", device_, clock_memory, &mhz) == success ? mhz : 0;
}

std::string Management::throttling() const {
  unsigned long long reasons = 0;
  if (!device_) return {};
  if (call(library_, "nvmlDeviceGetCurrentClocksEventReasons", device_, &reasons) != success &&
      call(library_, "nvmlDeviceGetCurrentClocksThrottleReasons", device_, &reasons) != success)
    return {};
  std::string text;
  const auto say = [&](unsigned long long bit, const char* what) {
    if ((reasons & bit) != 0) text += (text.empty() ? "" : ", ") + std::string(what);
  };
  say(0x04, "power cap");
  say(0x08, "hardware slowdown");
  say(0x20, "software thermal slowdown");
  say(0x40, "hardware thermal slowdown");
  say(0x80, "power brake");
  return text;
}

int Management::processes() const {
  unsigned count = 0;
  if (!device_) return -1;
  // NVML_ERROR_INSUFFICIENT_SIZE (7) comes with the count.
  const int code =
      call(library_, "nvmlDeviceGetComputeRunningProcesses_v3", device_, &count, static_cast<void*>(nullptr));
  return code == success || code == 7 ? static_cast<int>(count) : -1;
}

double Management::used_bytes() const {
  Memory memory{};
  return device_ && call(library_, "nvmlDeviceGetMemoryInfo", device_, &memory) == success
             ? static_cast<double>(memory.used)
             : -1;
}

int Management::nvlinks() const {
  int active = 0;
  for (unsigned link = 0; device_ && link < most_links; ++link) {
    unsigned state = 0;
    if (call(library_, "nvmlDeviceGetNvLinkState", device_, link, &state) == success && state == feature_enabled)
      ++active;
  }
  return active;
}

double Management::nvlink_bytes_per_s() const {
  if (!device_) return 0;
  FieldValue value{};
  value.field = field_link_speed;
  if (call(library_, "nvmlDeviceGetFieldValues", device_, 1, &value) != success || value.status != success) return 0;
  return 1e6 * static_cast<double>(value.value.u) * nvlinks();
}

int Management::pcie_generation() const {
  unsigned value = 0;
  return device_ && call(library_, "nvmlDeviceGetMaxPcieLinkGeneration", device_, &value) == success
             ? static_cast<int>(value)
             : 0;
}

int Management::pcie_width() const {
  unsigned value = 0;
  return device_ && call(library_, "nvmlDeviceGetMaxPcieLinkWidth", device_, &value) == success
             ? static_cast<int>(value)
             : 0;
}

int Management::bus_width_bits() const {
  unsigned value = 0;
  return device_ && call(library_, "nvmlDeviceGetMemoryBusWidth", device_, &value) == success ? static_cast<int>(value)
                                                                                              : 0;
}

std::string Management::driver() const {
  std::array<char, 96> text{};
  if (call(library_, "nvmlSystemGetDriverVersion", text.data(), static_cast<unsigned>(text.size())) != success)
    return {};
  return text.data();
}

}  // namespace plimsoll::calibrate::cuda
