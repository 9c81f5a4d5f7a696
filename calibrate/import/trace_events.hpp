// A Chrome trace event by event, without holding the file: nlohmann's SAX parser over pieces of the (possibly gzipped) text.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace plimsoll::calibrate {

/// What is read of one event; times in microseconds as the trace has them.
struct TraceEvent {
  std::string name, category;
  double start = 0, duration = -1;
  std::int64_t external_id = 0, stream = 0;
  std::vector<std::vector<std::int64_t>> dims, strides;  ///< by input; empty ones for scalars
  std::vector<std::string> types;
  std::string collective, collective_type;
  std::int64_t in_elements = 0, out_elements = 0, group_size = 0;
};

struct TraceEnd {
  std::int64_t events = 0;
  bool complete = true;
  std::string reason;  ///< why not
};

/// Calls `use` for each event of traceEvents, `device` for each of deviceProperties (name, multiprocessors, memory).
/// @throws MachineError if the file is missing or unreadable
TraceEnd read_trace(const std::string& path, const std::function<void(const TraceEvent&)>& use,
                    const std::function<void(const std::string&, std::int64_t, std::int64_t)>& device);

}  // namespace plimsoll::calibrate
