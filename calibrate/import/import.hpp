// How do measurements that there are already become samples?  Each reader streams its file, takes what it understands, and counts
// by reason what it leaves.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "calibrate/samples/sample.hpp"

namespace plimsoll::calibrate {

enum class LogKind { nccl_tests, kineto, google_benchmark, unknown };
const char* name_of(LogKind kind);

struct ImportOptions {
  std::string op;      ///< nccl-tests: the collective, where the log does not say
  std::string tier;    ///< of collectives: nvlink, pcie, nic; empty: by the hosts in the log
  std::string device;  ///< where the log does not say
};

struct Imported {
  LogKind kind = LogKind::unknown;
  Header header;
  std::vector<Sample> samples;
  std::map<std::string, std::int64_t> leftovers;  ///< what was not used, and how often
  std::vector<std::string> facts;                 ///< about the whole file: idle share, span
};

/// By its first kilobytes.  @throws MachineError if the file is missing or unreadable
LogKind kind_of_log(const std::string& path);

/// Tables of nccl-tests, also amid other lines.  Rows with wrong values, or times that contradict their own bandwidth, are
/// diagnosed (import.wrong, import.units, import.time) and left out; import.op where no line tells the collective.
Result<Imported> import_nccl_tests(const std::string& path, const ImportOptions& options);

/// Chrome traces of PyTorch's profiler with shapes.  Products, grouped products and attention by shape, only those that no
/// collective's kernel overlaps; collectives by size and group, the 10th percentile of their durations, since a collective's
/// kernel waits for its peers; gaps between kernels of a full queue.  import.cut where the trace ends early.
Result<Imported> import_kineto(const std::string& path, const ImportOptions& options);

/// JSON of Google Benchmark whose names are keys of points, as `bench --benchmark_out` writes them.
Result<Imported> import_google_benchmark(const std::string& path, const ImportOptions& options);

}  // namespace plimsoll::calibrate
