// FNV-1a over names (calibrate/bench/machine_name.hpp).
#include "calibrate/bench/machine_name.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <ctime>
#include <fstream>

namespace plimsoll::calibrate {

std::string machine_name(const std::vector<std::string>& parts) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  std::string all = host.data();
  std::ifstream file("/etc/machine-id");
  std::string id;
  if (std::getline(file, id)) all += id;
  for (const std::string& part : parts) all += '\n' + part;
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : all) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return fmt::format("{:012x}", hash >> 16);
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

std::string today() { return fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr))); }

}  // namespace plimsoll::calibrate
