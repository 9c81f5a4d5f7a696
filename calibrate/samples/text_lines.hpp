// How is a log read line by line without holding it?  Plain or gzip, in pieces of some hundred KiB.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace plimsoll::calibrate {

struct TextLine {
  std::string_view text;  ///< without its end; valid during the call
  int number = 1;
  std::size_t end = 0;   ///< byte offset behind its newline
  bool complete = true;  ///< ended by a newline
  std::string damage;    ///< why nothing can be read from within this line on; empty: the file ends well
};

/// A gzip that is cut off or damaged ends with a line that says so.
/// @throws MachineError if the file is missing or unreadable, or nothing of it can be read
void for_each_line(const std::string& path, const std::function<void(const TextLine&)>& use);

/// The pieces of a file one after the other.
class PieceReader {
 public:
  /// @throws MachineError if the file is missing or unreadable
  explicit PieceReader(std::string path);
  ~PieceReader();
  PieceReader(const PieceReader&) = delete;
  PieceReader& operator=(const PieceReader&) = delete;
  /// The next piece, valid until the next call; empty at the end.
  /// @throws MachineError for a damaged or cut gzip
  std::string_view next();

 private:
  struct State;
  std::string path_;
  std::unique_ptr<State> state_;
};

}  // namespace plimsoll::calibrate
