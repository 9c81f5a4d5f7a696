// Files of one test, in a folder that is removed with it; and runs of the built program.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace plimsoll::calibrate {

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "plimsoll-calibrate-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Folder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string path(const std::string& name) const { return (path_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }

 private:
  std::filesystem::path path_;
};

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
