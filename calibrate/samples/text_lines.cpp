// Reading of plain and gzip text in pieces through zlib (calibrate/samples/text_lines.hpp).
#include "calibrate/samples/text_lines.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "planner/base/machine_error.hpp"

namespace plimsoll::calibrate {

namespace {
struct CloseGzip {
  void operator()(gzFile file) const { gzclose(file); }
};
constexpr unsigned piece_bytes = 1U << 18;
}  // namespace

struct PieceReader::State {
  std::unique_ptr<gzFile_s, CloseGzip> file;
  std::vector<char> piece = std::vector<char>(piece_bytes);
};

PieceReader::PieceReader(std::string path) : path_(std::move(path)), state_(std::make_unique<State>()) {
  state_->file.reset(gzopen(path_.c_str(), "rb"));
  if (!state_->file) throw MachineError(fmt::format("cannot read {}: {}", path_, std::strerror(errno)));
  gzbuffer(state_->file.get(), piece_bytes);
}

PieceReader::~PieceReader() = default;

std::string_view PieceReader::next() {
  const int got = gzread(state_->file.get(), state_->piece.data(), piece_bytes);
  int code = Z_OK;
  const char* reason = gzerror(state_->file.get(), &code);
  if (got < 0)
    throw MachineError(fmt::format("cannot read {}: {}", path_, code == Z_ERRNO ? std::strerror(errno) : reason));
  if (got == 0 && code == Z_BUF_ERROR)
    throw MachineError(fmt::format("cannot read {}: the gzip file is cut off", path_));
  return {state_->piece.data(), static_cast<std::size_t>(got)};
}

void for_each_line(const std::string& path, const std::function<void(const TextLine&)>& use) {
  std::string rest;
  TextLine line;
  std::size_t offset = 0;
  line.number = 0;
  const auto pass = [&](std::string_view text, bool complete) {
    offset += text.size() + (complete ? 1 : 0);
    if (!text.empty() && text.back() == '\r') text.remove_suffix(1);
    line.text = text;
    ++line.number;
    line.end = offset;
    line.complete = complete;
    use(line);
  };
  PieceReader reader(path);
  const auto next = [&]() -> std::string_view {
    try {
      return reader.next();
    } catch (const MachineError& error) {
      if (offset == 0 && rest.empty()) throw;
      line.damage = error.what();
      return {};
    }
  };
  for (std::string_view piece = next(); !piece.empty(); piece = next()) {
    while (true) {
      const std::size_t end = piece.find('\n');
      if (end == std::string_view::npos) break;
      if (rest.empty()) {
        pass(piece.substr(0, end), true);
      } else {
        rest += piece.substr(0, end);
        pass(rest, true);
        rest.clear();
      }
      piece.remove_prefix(end + 1);
    }
    rest += piece;
  }
  if (!rest.empty() || !line.damage.empty()) pass(rest, false);
}

}  // namespace plimsoll::calibrate
