// A file's text, and runs of the built program.
#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

namespace plimsoll::calibrate {

inline std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Ran {
  int code = -1;
  std::string output;  ///< standard output and error
};
/// Runs a line of shell.
inline Ran run(const std::string& line) {
  Ran ran;
  FILE* pipe = popen(("NO_COLOR=1 " + line + " 2>&1").c_str(), "r");
  if (!pipe) return ran;
  std::array<char, 4096> piece{};
  std::size_t got = 0;
  while ((got = fread(piece.data(), 1, piece.size(), pipe)) > 0) ran.output.append(piece.data(), got);
  const int status = pclose(pipe);
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ran;
}

}  // namespace plimsoll::calibrate
