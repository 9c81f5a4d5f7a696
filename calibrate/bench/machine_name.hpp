// What is this machine called, so that two machines' samples are told apart without naming either?
#pragma once

#include <string>
#include <vector>

namespace plimsoll::calibrate {

/// 12 hexadecimal digits of a hash over the host name, the kernel's boot-independent machine id, and `parts`.
std::string machine_name(const std::vector<std::string>& parts);
std::string processor_name();  ///< as /proc/cpuinfo calls it
std::string today();           ///< 2026-11-29, UTC

}  // namespace plimsoll::calibrate
