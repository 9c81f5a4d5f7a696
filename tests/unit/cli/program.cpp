// Starts the program with its output in temporary files (tests/unit/cli/program.hpp).
#include "tests/unit/cli/program.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <cstdio>
#include <fstream>
#include <sstream>

namespace plimsoll::test {
namespace {

std::string contents(std::FILE* file) {
  std::string text;
  std::rewind(file);
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text += static_cast<char>(c);
  std::fclose(file);
  return text;
}

}  // namespace

ProgramRun run(const std::vector<std::string>& arguments) {
  std::FILE* out = std::tmpfile();
  std::FILE* err = std::tmpfile();
  const pid_t child = fork();
  if (child == 0) {
    dup2(fileno(out), STDOUT_FILENO);
    dup2(fileno(err), STDERR_FILENO);
    std::vector<char*> argv;
    std::string program = PLIMSOLL_BINARY;
    argv.push_back(program.data());
    std::vector<std::string> copies = arguments;
    for (std::string& argument : copies) argv.push_back(argument.data());
    argv.push_back(nullptr);
    execv(program.c_str(), argv.data());
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ProgramRun result;
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = contents(out);
  result.err = contents(err);
  return result;
}

nlohmann::json run_json(std::vector<std::string> arguments, int expected_code) {
  arguments.emplace_back("--json");
  const ProgramRun result = run(arguments);
  EXPECT_EQ(result.code, expected_code) << result.err;
  nlohmann::json json = nlohmann::json::parse(result.out, nullptr, false);
  EXPECT_TRUE(json.is_object()) << result.out.substr(0, 200);
  return json;
}

std::string write_compressed(const TemporaryFolder& folder, const char* name, const std::string& text) {
  std::string path = (folder.path() / name).string();
  const gzFile stream = gzopen(path.c_str(), "wb");
  gzwrite(stream, text.data(), static_cast<unsigned>(text.size()));
  gzclose(stream);
  return path;
}

}  // namespace plimsoll::test
