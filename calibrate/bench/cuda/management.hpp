// What does NVML say about the devices: clocks, throttling, links, foreign processes?  The library is part of the driver and is
// loaded when the program runs; where it is missing, all figures are "unknown".  Sources: the NVML API reference.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace plimsoll::calibrate::cuda {

class Management {
 public:
  Management();
  ~Management();
  Management(const Management&) = delete;
  Management& operator=(const Management&) = delete;

  bool loaded() const { return library_ != nullptr; }
  /// @param bus_id of the device, as cudaDeviceGetPCIBusId gives it; false: NVML does not know it
  bool select(const std::string& bus_id);
  double clock_mhz() const;           ///< of the SMs, now; 0: unknown
  std::string throttling() const;     ///< reasons in words, "" none
  int processes() const;              ///< that compute on the device; -1: unknown
  double used_bytes() const;          ///< -1: unknown
  int nvlinks() const;                ///< active ones
  double nvlink_bytes_per_s() const;  ///< one direction, all links
  int pcie_generation() const;
  int pcie_width() const;
  double memory_clock_mhz() const;
  int bus_width_bits() const;
  std::string driver() const;

 private:
  void* library_ = nullptr;
  void* device_ = nullptr;
};

}  // namespace plimsoll::calibrate::cuda
