// Appending with write and fsync (calibrate/samples/sample_log.hpp).
#include "calibrate/samples/sample_log.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string_view>
#include <utility>

#include "planner/base/machine_error.hpp"

namespace plimsoll::calibrate {

namespace {
[[noreturn]] void fail(const char* what, const std::string& path) {
  throw MachineError(fmt::format("cannot {} {}: {}", what, path, std::strerror(errno)));
}

/// The first bytes of the file as they stand there, compressed or not.
std::string beginning_of(const std::string& path) {
  std::string text(4096, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

/// True if it is what a kill leaves of a samples file while its first line is written.
bool is_torn_header(const std::string& beginning) {
  constexpr std::string_view header = "{\"header\":";
  const std::size_t length = std::min(header.size(), beginning.size());
  return beginning.size() < 4096 && beginning.find('\n') == std::string::npos &&
         std::string_view(beginning).substr(0, length) == header.substr(0, length);
}

Diagnostic refusal(const char* code, const std::string& path, std::string message, std::string help) {
  return {Severity::error,    code, {std::make_shared<SourceFile>(SourceFile{path, {}}), 1, 1, 1, {}},
          std::move(message), {},   std::move(help)};
}
}  // namespace

Result<SampleLog> SampleLog::open(const std::string& path, const Header& header, bool resume) {
  struct stat status {};
  const bool there = stat(path.c_str(), &status) == 0 && status.st_size > 0;
  Diagnostics diagnostics;
  std::set<std::string> done;
  std::size_t keep = 0, resumed = 0;
  if (resume && there) {
    const std::string beginning = beginning_of(path);
    if (beginning.starts_with("\x1f\x8b"))
      return refusal("samples.compressed", path, "this file is compressed; nothing can be appended to it",
                     "gunzip it first");
    auto before = read_samples(path);
    if (!before && !is_torn_header(beginning)) return before.diagnostics();
    if (before) {
      diagnostics = before.diagnostics();
      if (before->header.machine != header.machine || before->header.device != header.device ||
          before->header.world != header.world) {
        diagnostics.push_back(refusal(
            "samples.machine", path,
            fmt::format("the file holds samples of {} {} with {} ranks; this is {} {} with {}", before->header.device,
                        before->header.machine, before->header.world, header.device, header.machine, header.world),
            "write this machine's samples into a file of their own: -o OTHER.jsonl"));
        return diagnostics;
      }
      keep = before->whole_bytes;
      for (const Sample& sample : before->samples) done.insert(key_of(sample.point));
      resumed = before->samples.size();
    }
  }
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor < 0) fail("open", path);
  SampleLog log(path, descriptor);
  if (ftruncate(descriptor, static_cast<off_t>(keep)) != 0) fail("cut", path);
  log.done_ = std::move(done);
  log.resumed_ = resumed;
  log.write_line(line_of(header));
  return {std::move(log), std::move(diagnostics)};
}

SampleLog::SampleLog(SampleLog&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      done_(std::move(other.done_)),
      resumed_(other.resumed_) {}

SampleLog::~SampleLog() {
  if (descriptor_ >= 0) close(descriptor_);
}

void SampleLog::append(const Sample& sample) {
  write_line(line_of(sample));
  done_.insert(key_of(sample.point));
}

void SampleLog::append(const Failure& failure) { write_line(line_of(failure)); }

void SampleLog::write_line(const std::string& line) {
  std::size_t written = 0;
  while (written < line.size()) {
    const ssize_t got = write(descriptor_, line.data() + written, line.size() - written);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("write", path_);
    written += static_cast<std::size_t>(got);
  }
  if (fsync(descriptor_) != 0 && errno != EINVAL && errno != EROFS) fail("sync", path_);
}

}  // namespace plimsoll::calibrate
