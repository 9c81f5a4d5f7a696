// Do the documents show what the program prints?  Every ```console block of a Markdown file holds commands ("$ plimsoll ...")
// and their output; each command is run and must print what stands there.
//
// With PLIMSOLL_UPDATE_DOCS=1 in the environment the blocks are rewritten instead (`./dev docs`), to be read before they are
// committed.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace plimsoll {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> documents() {
  std::vector<fs::path> result;
  for (const char* folder : {"", "docs", "planner", "configs", "simulator", "calibrate", "runtime", "gui"}) {
    const fs::path at = fs::path(PLIMSOLL_SOURCE_DIR) / folder;
    if (!fs::exists(at)) continue;
    for (const auto& entry : fs::directory_iterator(at)) {
      if (entry.path().extension() == ".md") result.push_back(entry.path());
    }
  }
  return result;
}

/// Runs a line of shell in the source folder, with the built program first on the PATH.
std::string run(const std::string& command) {
  const std::string bin = fs::path(PLIMSOLL_BINARY).parent_path().string();
  const std::string line =
      "cd '" PLIMSOLL_SOURCE_DIR "' && PATH='" + bin + "':$PATH NO_COLOR=1 COLUMNS=100 sh -c '" + command + "' 2>&1";
  FILE* pipe = ::popen(line.c_str(), "r");
  if (!pipe) return "could not run\n";
  std::string output;
  std::array<char, 4096> buffer{};
  while (const std::size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) output.append(buffer.data(), n);
  ::pclose(pipe);
  if (!output.empty() && output.back() != '\n') output += '\n';
  return output;
}

struct Checked {
  std::string text;  ///< the document with the output of today
  std::string differences;
  int commands = 0;
};

Checked check(const fs::path& path) {
  std::ifstream in(path);
  Checked result;
  std::string line;
  bool inside = false;
  std::string command, shown;
  const auto finish = [&] {
    if (command.empty()) return;
    const std::string now = run(command);
    ++result.commands;
    if (now != shown)
      result.differences += path.filename().string() + ": $ " + command + "\nshown:\n" + shown + "now:\n" + now;
    result.text += now;
    command.clear();
    shown.clear();
  };
  while (std::getline(in, line)) {
    if (!inside) {
      inside = line == "```console";
      result.text += line + "\n";
    } else if (line == "```") {
      finish();
      inside = false;
      result.text += line + "\n";
    } else if (line.rfind("$ ", 0) == 0) {
      finish();
      command = line.substr(2);
      result.text += line + "\n";
    } else {
      shown += line + "\n";
    }
  }
  return result;
}

TEST(Docs, ShowWhatTheProgramPrints) {
  const bool update = std::getenv("PLIMSOLL_UPDATE_DOCS") != nullptr;
  int commands = 0;
  for (const fs::path& path : documents()) {
    const Checked checked = check(path);
    commands += checked.commands;
    if (update) {
      std::ofstream(path) << checked.text;
    } else {
      EXPECT_EQ(checked.differences, "");
    }
  }
  EXPECT_GT(commands, 0) << "no document shows a command";
}

}  // namespace
}  // namespace plimsoll
