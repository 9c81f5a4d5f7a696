// Sums the steady step's collectives and copies by row (planner/account/volume.hpp).
#include "planner/account/volume.hpp"

#include <cmath>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace plimsoll {

namespace {

class Rows {
 public:
  void add(VolumeRow row) {
    const Key key{row.kind, row.group, row.phase, row.tier, row.dtype, row.full_size.count};
    const auto [found, inserted] = index_.try_emplace(key, rows_.size());
    if (inserted) {
      rows_.push_back(std::move(row));
    } else {
      rows_[found->second].calls += row.calls;
      rows_[found->second].wire += row.wire;
    }
  }
  std::vector<VolumeRow> take() { return std::move(rows_); }

 private:
  using Key = std::tuple<std::string, std::string, std::string, Tier, DType, std::int64_t>;
  std::map<Key, std::size_t> index_;
  std::vector<VolumeRow> rows_;
};

/// Which part of the step an op belongs to.  The thread that runs the forward also issues what an engine does once the
/// backward has returned (the reductions of DeepSpeed's stage 1): that is part of its micro-batch's backward.
class PhaseOfOp {
 public:
  const char* operator()(const Op& op) {
    switch (op.issuer) {
      case Issuer::forward: return backward_begun_in_ == op.micro_batch ? "backward" : "forward";
      case Issuer::backward: backward_begun_in_ = op.micro_batch; return "backward";
      case Issuer::optimizer: return "step";
    }
    return "";
  }

 private:
  std::optional<std::uint16_t> backward_begun_in_;
};

std::int64_t times(const RankProgram& rank, OpId op) {
  for (const Repeat& repeat : rank.repeats) {
    if (op >= repeat.first && op < repeat.end) return repeat.count;
  }
  return 1;
}

/// Calls that differ in nothing that a row tells: a step has thousands of them, and few that differ.
struct Calls {
  bool is_copy = false;
  bool to_device = false;  ///< of a copy
  CollectiveKind kind{};
  GroupId group = 0;
  DType dtype = DType::int8;
  const char* phase = "";  ///< of PhaseOfOp: equal phases are one literal
  Bytes size;
  bool operator==(const Calls&) const = default;
};
struct HashOfCalls {
  std::size_t operator()(const Calls& calls) const {
    const auto small = static_cast<std::uint64_t>(calls.kind) << 16 | calls.group;
    return static_cast<std::size_t>((static_cast<std::uint64_t>(calls.size.count) ^ small << 40) *
                                    0x9e3779b97f4a7c15ULL) ^
           std::hash<const char*>{}(calls.phase);
  }
};

/// Splits a collective's wire bytes over the tiers; the last tier takes the rounding, so that the sum is exact.
void add_collective(Rows& rows, const Calls& met, const Group& group, std::int64_t calls, int rank,
                    const ClusterSpec& cluster) {
  if (group.size <= 1) return;
  const Bytes wire = wire_bytes(met.kind, met.size, group.size);
  const auto shares = tier_share(cluster, group_of_rank(group.size, group.stride, rank), met.kind);
  if (!shares) return;  // an unreachable group is reported when the scenario is checked
  Bytes left = wire;
  int last = 0;
  for (int t = 0; t < tier_count; ++t) {
    if (shares->mean[static_cast<std::size_t>(t)] > 0) last = t;
  }
  for (int t = 0; t <= last; ++t) {
    const double share = shares->mean[static_cast<std::size_t>(t)];
    if (share <= 0) continue;
    const Bytes part = t == last ? left : Bytes(std::llround(share * static_cast<double>(wire.count)));
    left -= part;
    rows.add(
        {name_of(met.kind), group.name, met.phase, static_cast<Tier>(t), met.dtype, calls, met.size, part * calls});
  }
}

}  // namespace

CommVolume account_volume(const StepProgram& program, const RankProgram& rank, const ClusterSpec& cluster) {
  std::vector<std::pair<Calls, std::int64_t>> all;  // in order of their first
  std::unordered_map<Calls, std::size_t, HashOfCalls> index;
  PhaseOfOp phase_of;
  for (OpId id = rank.steady_first; id < rank.steady_end; ++id) {
    const Op& op = rank.ops[id];
    Calls met;
    met.phase = phase_of(op);
    if (const auto* collective = std::get_if<Collective>(&op.action)) {
      met.kind = collective->kind;
      met.group = collective->group;
      met.dtype = collective->dtype;
      met.size = collective->full_size;
    } else if (const auto* copy = std::get_if<HostCopy>(&op.action)) {
      met.is_copy = true;
      met.to_device = copy->to_device;
      met.size = copy->size;
    } else {
      continue;
    }
    const auto [found, is_new] = index.try_emplace(met, all.size());
    if (is_new) all.emplace_back(met, 0);
    all[found->second].second += times(rank, id);
  }
  Rows rows;
  const int example = program.classes.empty() ? 0 : program.classes.front().example_rank;
  for (const auto& [met, calls] : all) {
    if (met.is_copy) {
      rows.add({met.to_device ? "host_to_device" : "device_to_host", "host", met.phase, Tier::host, met.dtype, calls,
                met.size, met.size * calls});
    } else {
      add_collective(rows, met, program.groups[met.group], calls, example, cluster);
    }
  }
  CommVolume volume;
  volume.rows = rows.take();
  for (const VolumeRow& row : volume.rows) volume.per_gpu += row.wire;
  return volume;
}

}  // namespace plimsoll
