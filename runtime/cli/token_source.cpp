// Tokens from files (runtime/cli/token_source.hpp).
#include "runtime/cli/token_source.hpp"

#include <fmt/format.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "planner/base/format.hpp"
#include "planner/base/machine_error.hpp"

namespace plimsoll {

namespace {

std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  if (file) bytes << file.rdbuf();
  if (!file || file.bad()) throw MachineError(fmt::format("cannot read {}", path));
  return std::move(bytes).str();
}

std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace

Result<TokenSource> TokenSource::open(const std::string& argument, const FeedLayout& layout, std::uint64_t seed) {
  TokenSource source;
  source.layout_ = layout;
  source.seed_ = seed;
  source.words_ = "synthetic tokens";
  if (argument == "synthetic") return source;
  const std::string bytes = read_bytes(argument);
  const bool wide = argument.ends_with(".tokens");
  if (wide && bytes.size() % 4 != 0)
    return make_error("data.truncated",
                      fmt::format("{} ends within a token: {} bytes are no multiple of 4", argument,
                                  format_count(static_cast<std::int64_t>(bytes.size()))),
                      "write it again; tokens are int32, little-endian");
  auto tokens = std::make_shared<std::vector<std::int32_t>>(wide ? bytes.size() / 4 : bytes.size());
  if (wide) {
    std::memcpy(tokens->data(), bytes.data(), bytes.size());
  } else {
    for (std::size_t i = 0; i < bytes.size(); ++i) (*tokens)[i] = static_cast<unsigned char>(bytes[i]);
  }
  const auto size = static_cast<std::int64_t>(tokens->size());
  if (size < layout.sequence + 1)
    return make_error("data.truncated",
                      fmt::format("{} has {} tokens; one sequence and its labels are {}", argument, format_count(size),
                                  format_count(layout.sequence + 1)),
                      "a longer file, or a shorter sequence");
  for (std::int64_t i = 0; i < size; ++i) {
    const std::int32_t token = (*tokens)[static_cast<std::size_t>(i)];
    if (token < 0 || token >= layout.vocab)
      return make_error("data.vocabulary",
                        fmt::format("token {} of {} is {}, beyond the vocabulary of {}", format_count(i), argument,
                                    token, format_count(layout.vocab)),
                        wide ? "was the file made with this model's tokenizer?" : "bytes need a vocabulary of 256");
  }
  source.words_ = fmt::format("{} tokens of {}", format_count(size), argument);
  source.tokens_ = std::move(tokens);
  return source;
}

MicroBatch TokenSource::batch(std::int64_t micro_batch) const {
  MicroBatch batch;
  const std::int64_t rows = layout_.tokens / layout_.sequence, length = layout_.sequence;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t index = micro_batch * rows + row;
    if (tokens_) {
      // Sequences one after the other; the label of each token is its successor.
      const auto size = static_cast<std::int64_t>(tokens_->size());
      const std::int64_t first = index % ((size - 1) / length) * length;
      for (std::int64_t i = 0; i < length; ++i) {
        batch.ids.push_back((*tokens_)[static_cast<std::size_t>(first + i)]);
        batch.labels.push_back((*tokens_)[static_cast<std::size_t>(first + i + 1)]);
      }
    } else {
      std::uint64_t state = mix(seed_ ^ mix(static_cast<std::uint64_t>(index)));
      for (std::int64_t i = 0; i <= length; ++i) {
        state = mix(state);
        const auto token = static_cast<std::int64_t>(state % static_cast<std::uint64_t>(layout_.vocab));
        if (i < length) batch.ids.push_back(token);
        if (i > 0) batch.labels.push_back(token);
      }
    }
  }
  return batch;
}

}  // namespace plimsoll
