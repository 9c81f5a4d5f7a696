// What was measured?  One sample is one point (a kernel, copy, collective or pair of them, by its sizes) with the time it took;
// a header says on which machine and with which versions.  Files hold one JSON object a line (calibrate/README.md):
//   {"header": {...}}                                                first line, and again at each --resume
//   {"kind": "gemm", "labels": {...}, "sizes": {...}, "time_s": ...} a sample
//   {"failed": {...}}                                                a point that could not be measured, and why
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "planner/base/diagnostic.hpp"

namespace plimsoll::calibrate {

/// What is measured, apart from how long it took.  Kinds and their sizes (elements unless said):
///   gemm, gemm_grouped   m n k (groups); labels layout = forward | input_gradient | weight_gradient, dtype
///   attention            batch (sequences x heads) kv_batch length head_dim; labels direction, dtype, library
///   kernel               elements bytes; labels op, dtype
///   copy                 bytes (round: samples/rounds.hpp); labels direction, memory = pinned | pageable, ranks = one | all
///   collective           bytes (full size S) ranks; labels op, dtype, group
///   pair                 as its first member; labels first, second: what ran beside each other; resident = second: it ran already
///   host                 labels op: launch, event, sync, stream_wait, cpu_adam (elements)
///   fixed_bytes          labels what: context, communicator, workspace; the figure `bytes` is the result
struct Point {
  std::string kind;
  std::map<std::string, std::string> labels;
  std::map<std::string, std::int64_t> sizes;

  std::string label(std::string_view name) const;  ///< "" where there is none
  std::int64_t size(std::string_view name) const;  ///< 0 where there is none
  auto operator<=>(const Point&) const = default;
};

/// "gemm/dtype=bf16/layout=forward/k=4096/m=8192/n=4096": the same for the same point, everywhere.
std::string key_of(const Point& point);

/// From a nanosecond to a thousand seconds: what else is no kernel, copy, collective or cost of the host, but another unit.
bool is_possible_time(double seconds);

struct Sample {
  Point point;
  double time_s = 0;             ///< median of the repetitions
  double low_s = 0, high_s = 0;  ///< 95 % interval of that median
  int repetitions = 1;
  std::map<std::string, double> figures;  ///< clock_mhz, throttle_share, slowdown_first, bytes, ...
  std::string note;                       ///< what makes the figure doubtful; empty: nothing
  std::string source;                     ///< bench, or the imported file
  int line = 0;                           ///< of the samples file; 0: not from a file
};

struct Header {
  std::string device;       ///< "h200", "host": the cluster's device name
  std::string device_name;  ///< "NVIDIA H200", as the driver calls it
  std::string machine;      ///< tells machines apart: a hash of host name and device identifiers
  std::string backend;      ///< cuda, host, import
  std::string date;         ///< 2026-11-29
  std::string versions;     ///< driver, CUDA, cuBLAS, cuDNN, NCCL
  int multiprocessors = 0;
  std::int64_t cache_bytes = 0;  ///< of the device's last cache; 0: not stated
  int world = 1;
};

struct Failure {
  std::string key, reason;
};

struct SampleFile {
  std::string path;
  Header header;
  std::vector<Sample> samples;
  std::vector<Failure> failures;
  std::size_t whole_bytes = 0;  ///< up to and including the last complete line
};

/// Reads a samples file (also gzip).  Lines that are cut off, no samples, or hold no possible time are diagnosed by
/// line (samples.line, .time, .interval, .kind, .size, .format and .device of a header) and left out; so are all samples after a header of another machine
/// (samples.machine) and repeated points (samples.repeated; the first counts).  Error: samples.header.
/// @throws MachineError if the file is missing or unreadable
Result<SampleFile> read_samples(const std::string& path);

/// One line of a samples file, newline included.
std::string line_of(const Header& header);
std::string line_of(const Sample& sample);
std::string line_of(const Failure& failure);

}  // namespace plimsoll::calibrate
