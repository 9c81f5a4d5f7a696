// A recorded training step as the allocator saw it: the files in tests/data/allocator_traces (their head states the form
// and the source).
#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace plimsoll {

struct AllocatorTrace {
  struct Event {
    std::int64_t size = 0;  ///< bytes requested; 0: a free
    std::size_t id = 0;
  };
  std::int64_t live_before = 0;    ///< bytes allocated when the step began
  std::int64_t measured_peak = 0;  ///< highest allocated bytes within it, by the framework's counter
  std::size_t ids = 0;             ///< ids are below it
  std::vector<Event> events;
};

/// @param root the source tree
/// @throws std::runtime_error if there is no such file
inline AllocatorTrace load_trace(const std::string& root, const std::string& name) {
  std::ifstream file(root + "/tests/data/allocator_traces/" + name + ".txt");
  if (!file) throw std::runtime_error("no allocator trace " + name);
  AllocatorTrace trace;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    if (line.starts_with('#')) continue;
    if (line.starts_with("live_before")) {
      words >> word >> trace.live_before;
    } else if (line.starts_with("measured_peak")) {
      words >> word >> trace.measured_peak;
    } else if (line.starts_with('-')) {
      trace.events.push_back({0, std::stoul(line.substr(1))});
    } else {
      AllocatorTrace::Event event;
      words >> event.size >> event.id;
      trace.ids = std::max(trace.ids, event.id + 1);
      trace.events.push_back(event);
    }
  }
  return trace;
}

}  // namespace plimsoll
