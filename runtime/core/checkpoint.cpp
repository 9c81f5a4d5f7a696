// Files of a checkpoint (runtime/core/checkpoint.hpp).
//   file:  "plimsoll state 1\n"  "ranks R steps S updates U pieces P\n"  P x "name first numel whole\n"
//          for every piece weights, first and second moments, fp32;  then the FNV-1a hash of all that, 8 bytes
#include "runtime/core/checkpoint.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "planner/base/machine_error.hpp"

namespace plimsoll {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view first_line = "plimsoll state 1\n";
constexpr std::array kinds{StateKind::weights, StateKind::first_moment, StateKind::second_moment};

std::uint64_t hash_of(std::string_view bytes) {
  std::uint64_t state = 0xcbf29ce484222325ULL;
  for (const char byte : bytes) state = (state ^ static_cast<unsigned char>(byte)) * 0x100000001b3ULL;
  return state;
}

std::string file_of(int rank) { return fmt::format("rank-{:05}.state", rank); }

[[noreturn]] void cannot_write(const fs::path& path) {
  throw MachineError(
      fmt::format("cannot save {}: {}; the checkpoint before it is intact", path.string(), std::strerror(errno)));
}

/// Writes and brings to the disk.
void write_file(const fs::path& path, std::string_view bytes) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (file < 0) cannot_write(path);
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written <= 0) {
      const int reason = errno;
      ::close(file);
      errno = reason;
      cannot_write(path);
    }
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  if (::fsync(file) != 0 || ::close(file) != 0) cannot_write(path);
}

std::string state_of(Execution& execution, const Progress& progress) {
  std::map<const FlatGroup*, std::array<std::vector<float>, 3>> shards;
  std::string head, data;
  std::int64_t pieces = 0;
  for_each_piece(execution.rank(), [&](const ShardPiece& piece) {
    auto& shard = shards[&piece.group];
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      if (shard[i].empty()) shard[i] = read_shard(execution, piece.group, kinds[i]);
      data.append(reinterpret_cast<const char*>(shard[i].data() + piece.in_shard),
                  static_cast<std::size_t>(piece.numel) * sizeof(float));
    }
    head += fmt::format("{} {} {} {}\n", piece.slot.name, piece.first, piece.numel, piece.slot.whole_numel);
    ++pieces;
  });
  std::string bytes = fmt::format("{}ranks {} steps {} updates {} pieces {}\n", first_line,
                                  execution.program().world_size, progress.steps, progress.updates, pieces);
  bytes += head + data;
  const std::uint64_t hash = hash_of(bytes);
  bytes.append(reinterpret_cast<const char*>(&hash), sizeof hash);
  return bytes;
}

Diagnostics wrong(const fs::path& file, const std::string& message, const std::string& help = {}) {
  return {make_error("checkpoint", fmt::format("{}: {}", file.string(), message), help)};
}

/// A run of elements that a file holds.
struct SavedPiece {
  std::int64_t first = 0, numel = 0, whole = 0;
  std::shared_ptr<const std::string> bytes;
  std::size_t at = 0;  ///< of its weights; moments follow
};

struct SavedState {
  Progress progress;
  std::int64_t ranks = 0;
  std::map<std::string, std::vector<SavedPiece>> pieces;
};

std::optional<std::string> read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return std::move(bytes).str();
}

/// Adds one rank's file; an error in words, empty: none.
std::string add_file(const fs::path& path, SavedState& state) {
  auto read = read_file(path);
  if (!read) return "is missing: the checkpoint is not whole";
  const auto bytes = std::make_shared<const std::string>(std::move(*read));
  std::uint64_t hash = 0;
  if (bytes->size() < sizeof hash + first_line.size() || !bytes->starts_with(first_line))
    return "is no checkpoint's file";
  std::memcpy(&hash, bytes->data() + bytes->size() - sizeof hash, sizeof hash);
  if (hash != hash_of(std::string_view(*bytes).substr(0, bytes->size() - sizeof hash)))
    return "is truncated or damaged: its hash differs";
  std::istringstream head(*bytes);
  std::string line, word;
  std::int64_t pieces = 0;
  std::getline(head, line);
  head >> word >> state.ranks >> word >> state.progress.steps >> word >> state.progress.updates >> word >> pieces;
  std::vector<std::pair<std::string, SavedPiece>> read_pieces(static_cast<std::size_t>(pieces));
  for (auto& [name, piece] : read_pieces) head >> name >> piece.first >> piece.numel >> piece.whole;
  std::getline(head, line);
  auto at = static_cast<std::size_t>(head.tellg());
  for (auto& [name, piece] : read_pieces) {
    piece.bytes = bytes;
    piece.at = at;
    at += static_cast<std::size_t>(piece.numel) * sizeof(float) * kinds.size();
    state.pieces[name].push_back(piece);
  }
  return "";
}

/// Copies what `pieces` hold of elements [first, first + out.size()) of a parameter; how many they are.
std::int64_t copy_elements(const std::vector<SavedPiece>& pieces, std::size_t kind, std::int64_t first,
                           std::span<float> out) {
  std::int64_t copied = 0;
  const std::int64_t end = first + static_cast<std::int64_t>(out.size());
  for (const SavedPiece& piece : pieces) {
    const std::int64_t begin = std::max(first, piece.first), stop = std::min(end, piece.first + piece.numel);
    if (begin >= stop) continue;
    const auto skipped = static_cast<std::size_t>(static_cast<std::int64_t>(kind) * piece.numel + begin - piece.first);
    std::memcpy(out.data() + (begin - first), piece.bytes->data() + piece.at + skipped * sizeof(float),
                static_cast<std::size_t>(stop - begin) * sizeof(float));
    copied += stop - begin;
  }
  return copied;
}

}  // namespace

void save_checkpoint(Execution& execution, const std::string& directory, int rank, const Progress& progress,
                     const std::function<void()>& meet) {
  const fs::path final_name = fs::path(directory) / fmt::format("step-{:08}", progress.steps);
  const fs::path part = final_name.string() + ".part";
  std::error_code error;
  fs::create_directories(part, error);
  try {
    write_file(part / file_of(rank), state_of(execution, progress));
    meet();
  } catch (...) {
    fs::remove_all(part, error);
    throw;
  }
  if (rank == 0) {
    fs::remove_all(final_name, error);
    fs::rename(part, final_name, error);
    if (error) cannot_write(final_name);
  }
  meet();
}

std::optional<std::string> newest_checkpoint(const std::string& directory) {
  std::error_code error;
  std::optional<std::string> newest;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("step-") || name.ends_with(".part")) continue;
    if (!newest || fs::path(*newest).filename().string() < name) newest = entry.path().string();
  }
  return newest;
}

Result<Progress> load_checkpoint(Execution& execution, const std::string& folder) {
  SavedState state;
  std::string problem = add_file(fs::path(folder) / file_of(0), state);
  if (!problem.empty()) return wrong(fs::path(folder) / file_of(0), problem);
  for (int rank = 1; rank < state.ranks; ++rank) {
    problem = add_file(fs::path(folder) / file_of(rank), state);
    if (!problem.empty()) return wrong(fs::path(folder) / file_of(rank), problem);
  }
  for (const ParameterSlot& slot : execution.rank().slots) {
    const auto found = state.pieces.find(slot.name);
    if (found == state.pieces.end())
      return wrong(folder, fmt::format("holds no {}", slot.name), "is it of this model?");
    std::int64_t held = 0;
    for (const SavedPiece& piece : found->second) held += piece.numel;
    if (held < slot.whole_numel || found->second.front().whole != slot.whole_numel)
      return wrong(folder, fmt::format("holds {} of {} elements of {}", held, slot.whole_numel, slot.name),
                   "is it of this model?");
  }
  set_weights(execution, [&](const ParameterSlot& slot, std::int64_t first, std::span<float> values) {
    copy_elements(state.pieces.at(slot.name), 0, first, values);
  });
  for (const FlatGroup& group : execution.rank().flat_groups) {
    for (std::size_t kind = 1; kind < kinds.size(); ++kind) {
      std::vector<float> shard(static_cast<std::size_t>(group.shard_numel));
      for_each_piece(execution.rank(), [&](const ShardPiece& piece) {
        if (&piece.group != &group) return;
        copy_elements(
            state.pieces.at(piece.slot.name), kind, piece.first,
            std::span(shard).subspan(static_cast<std::size_t>(piece.in_shard), static_cast<std::size_t>(piece.numel)));
      });
      write_shard(execution, group, kinds[kind], shard);
    }
  }
  return state.progress;
}

}  // namespace plimsoll
