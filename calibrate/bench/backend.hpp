// What runs the things that are measured?  A backend prepares a point (buffers, handles, random data) and runs it as often
// as asked, each time with its own clock: CUDA events, or the host's steady clock.
#pragma once

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "calibrate/samples/sample.hpp"

namespace plimsoll::calibrate {

class Ranks;

/// A point that this backend, device or library cannot measure; the others go on.
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A prepared point.
class Work {
 public:
  Work() = default;
  virtual ~Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  /// Runs it `count` times.  Returns the seconds of each; all ranks of a shared point call it with the same count.
  virtual std::vector<double> run(int count) = 0;
  /// What else was found: slowdowns of a pair, bytes.
  virtual std::map<std::string, double> figures() const { return {}; }
  /// One run is all there is to measure, its warm-up and repetitions within: run(1) is called once, and may return many times.
  virtual bool once() const { return false; }
};

/// The machine's state around a measurement.
struct Conditions {
  double clock_mhz = 0;  ///< 0: unknown
  std::string doubt;     ///< throttling, foreign processes; empty: none seen
};

class Backend {
 public:
  Backend() = default;
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  virtual Header header() const = 0;
  /// @throws Unsupported, MachineError
  virtual std::unique_ptr<Work> prepare(const Point& point) = 0;
  virtual Conditions conditions() = 0;
  /// True if after an error nothing more can be measured in this process (a CUDA context that is lost).
  virtual bool lost() const { return false; }
};

/// Eigen, memcpy, and collectives between threads; between processes by MPI where `ranks` came from Open MPI, else over TCP.
std::unique_ptr<Backend> make_host_backend(Ranks& ranks);

/// @throws MachineError where there is no device, or the build has no CUDA
std::unique_ptr<Backend> make_cuda_backend(Ranks& ranks);

}  // namespace plimsoll::calibrate
