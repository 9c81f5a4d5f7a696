// How does a measurement lose nothing?  Each sample is one line, written at once and synced to the disk before the next
// measurement starts; a killed run loses at most the sample under way, and resuming cuts off a line that a crash tore.
#pragma once

#include <set>
#include <string>

#include "calibrate/samples/sample.hpp"

namespace plimsoll::calibrate {

class SampleLog {
 public:
  /// Opens the file for appending and writes the header.  With `resume`, an existing file's samples count as done; else an
  /// existing file is replaced.  Errors: samples.machine where the file is another machine's, samples.compressed, and those of
  /// read_samples.
  /// @throws MachineError if the file cannot be read or written
  static Result<SampleLog> open(const std::string& path, const Header& header, bool resume);

  SampleLog(SampleLog&& other) noexcept;
  SampleLog& operator=(SampleLog&&) = delete;
  SampleLog(const SampleLog&) = delete;
  SampleLog& operator=(const SampleLog&) = delete;
  ~SampleLog();

  /// @throws MachineError where it cannot be written (a full disk)
  void append(const Sample& sample);
  void append(const Failure& failure);
  bool has(const Point& point) const { return done_.contains(key_of(point)); }
  std::size_t resumed() const { return resumed_; }

 private:
  SampleLog(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  void write_line(const std::string& line);

  std::string path_;
  int descriptor_ = -1;
  std::set<std::string> done_;
  std::size_t resumed_ = 0;
};

}  // namespace plimsoll::calibrate
