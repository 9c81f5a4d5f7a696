// Sums the steady step's collectives and copies by row (planner/account/volume.hpp).
#include "planner/account/volume.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

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

/// Splits a collective's wire bytes over the tiers; the last tier takes the rounding, so that the sum is exact.
void add_collective(Rows& rows, const Collective& action, const Group& group, const char* phase, std::int64_t calls,
                    int rank, const ClusterSpec& cluster) {
  if (group.size <= 1) return;
  const Bytes wire = wire_bytes(action.kind, action.full_size, group.size);
  const auto shares = tier_share(cluster, group_of_rank(group.size, group.stride, rank), action.kind);
  if (!shares) return;  // an unreachable group is reported when the scenario is checked
  Bytes left = wire;
  int last = 0;
  for (int t = 0; t < tier_count; ++t) {
    if (shares->mean[static_cast<std::size_t>(t)] > 0) last = t;
  }
  for (int t = 0; t <= last; ++t) {
    const double share = shares->mean[static_cast<std::size_t>(t)];
    if (share <= 0) continue;
    const Bytes part =
        t == last ? left : Bytes(static_cast<std::int64_t>(share * static_cast<double>(wire.count) + 0.5));
    left -= part;
    rows.add({name_of(action.kind), group.name, phase, static_cast<Tier>(t), action.dtype, calls, action.full_size,
              part * calls});
  }
}

}  // namespace

CommVolume account_volume(const StepProgram& program, const RankProgram& rank, const ClusterSpec& cluster) {
  Rows rows;
  PhaseOfOp phase_of;
  const int example = program.classes.empty() ? 0 : program.classes.front().example_rank;
  for (OpId id = rank.steady_first; id < rank.steady_end; ++id) {
    const Op& op = rank.ops[id];
    const char* phase = phase_of(op);
    if (const auto* collective = std::get_if<Collective>(&op.action)) {
      add_collective(rows, *collective, program.groups[collective->group], phase, times(rank, id), example, cluster);
    } else if (const auto* copy = std::get_if<HostCopy>(&op.action)) {
      const std::int64_t calls = times(rank, id);
      rows.add({copy->to_device ? "host_to_device" : "device_to_host", "host", phase, Tier::host, DType::int8, calls,
                copy->size, copy->size * calls});
    }
  }
  CommVolume volume;
  volume.rows = rows.take();
  for (const VolumeRow& row : volume.rows) volume.per_gpu += row.wire;
  return volume;
}

}  // namespace plimsoll
