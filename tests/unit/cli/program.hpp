// Runs the built program as a user does, and catches what it prints and returns.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/temporary_folder.hpp"

namespace plimsoll::test {

struct ProgramRun {
  int code = -1;    ///< exit code; 128 + signal if it was killed
  std::string out;  ///< standard output
  std::string err;  ///< standard error
};

ProgramRun run(const std::vector<std::string>& arguments);

/// The object on standard output; discarded if it is not exactly one JSON value.
nlohmann::json run_json(std::vector<std::string> arguments, int expected_code = 0);

/// Writes a text compressed by gzip. @return the file's path
std::string write_compressed(const TemporaryFolder& folder, const char* name, const std::string& text);

/// A file that is gone when the test ends.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text, const std::string& suffix = ".json")
      : path_(folder_.write("file" + suffix, text)) {}
  const std::string& path() const { return path_; }

 private:
  TemporaryFolder folder_;
  std::string path_;
};

/// A Llama of two small layers.
inline constexpr const char* small_model = R"({"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 1000,
  "max_position_embeddings": 4096, "tie_word_embeddings": false})";

}  // namespace plimsoll::test
