// Flattening and pricing (simulator/priced_program.hpp).
#include "simulator/priced_program.hpp"

#include <algorithm>
#include <unordered_map>

#include "planner/spec/price_rules.hpp"

namespace plimsoll {

namespace {

constexpr std::uint32_t none = ~0u;

struct CollectiveKey {
  CollectiveKind kind;
  GroupId group;
  std::int64_t full, receive;
  Carrier carrier;
  bool operator==(const CollectiveKey&) const = default;
};
struct HashOfKey {
  std::size_t operator()(const CollectiveKey& key) const {
    const auto mixed = static_cast<std::uint64_t>(key.full) * 0x9e3779b97f4a7c15ULL ^
                       static_cast<std::uint64_t>(key.receive) * 0xc2b2ae3d27d4eb4fULL;
    return static_cast<std::size_t>(mixed ^ (static_cast<std::uint64_t>(key.group) << 8U) ^
                                    static_cast<std::uint64_t>(key.kind));
  }
};

Share share_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_gather: return Share::all_gather;
    case CollectiveKind::reduce_scatter: return Share::reduce_scatter;
    case CollectiveKind::all_reduce: return Share::all_reduce;
    case CollectiveKind::all_to_all: return Share::all_to_all;
    case CollectiveKind::broadcast: return Share::broadcast;
  }
  return Share::compute;
}

class Flattener {
 public:
  Flattener(const RankProgram& program, const StepProgram& step, int rank, const Prices& plain, const Prices& doubled)
      : program_(program), step_(step), rank_(rank), plain_(plain), doubled_(doubled) {
    result_.program = &program;
  }

  PricedProgram run() {
    positions_.assign(program_.steady_end - program_.steady_first, none);
    result_.ops.reserve(positions_.size());
    for (OpId id = program_.steady_first; id < program_.steady_end; ++id) price(id);
    unroll();
    resolve();
    return std::move(result_);
  }

 private:
  void price(OpId id) {
    const Op& op = program_.ops[id];
    const Action& action = op.action;
    if (std::holds_alternative<Alloc>(action) || std::holds_alternative<Free>(action) ||
        std::holds_alternative<EmptyCache>(action))
      return;  // they take no time
    positions_[id - program_.steady_first] = static_cast<std::uint32_t>(result_.ops.size());
    PricedOp& priced = result_.ops.emplace_back();
    priced.op = id;
    priced.lane = op.lane;
    priced.waits = op.after_count;
    if (const auto* compute = std::get_if<Compute>(&op.action)) {
      price(op, compute->kernel, priced);
    } else if (const auto* collective = std::get_if<Collective>(&op.action)) {
      price(op, *collective, priced);
    } else if (const auto* copy = std::get_if<HostCopy>(&op.action)) {
      priced.share = Share::offload;
      priced.work = plain_.copy(*copy);
      priced.host = plain_.launch(op.issuer, KernelKind::small);
    } else if (const auto* work = std::get_if<HostWork>(&op.action)) {
      priced.what = PricedOp::What::host_work;
      priced.host = plain_.host_work(*work);
      priced.by_memory = work->kind == HostWorkKind::cpu_adam;
      priced.share = priced.by_memory ? Share::offload : Share::host;
      priced.noted = op.lane != Lane::host || priced.by_memory;
    } else if (const auto* sync = std::get_if<HostSync>(&op.action)) {
      priced.what = PricedOp::What::host_sync;
      priced.share = Share::host;
      priced.lane = sync->waits_for;
      priced.host = plain_.sync();
    }
  }

  /// Launches share their kernel: each is priced once.
  struct KernelTime {
    SimTime work = -1, sagging = 0;
    double matrix_s = 0;
    std::array<SimTime, 3> host{}, repeats{};  ///< by issuer
  };
  KernelTime time_of(const Kernel& kernel) const {
    KernelTime time;
    const SimTime alone = plain_.kernel(kernel);
    time.work = alone + plain_.kernel_gap() * (kernel.launches - 1);
    time.sagging = std::max<SimTime>(doubled_.kernel(kernel) - alone, 0);
    time.matrix_s = plain_.matrix_seconds(kernel);
    Kernel first = kernel;
    first.launches = 1;
    for (const Issuer issuer : {Issuer::forward, Issuer::backward, Issuer::optimizer}) {
      const auto i = static_cast<std::size_t>(issuer);
      time.host[i] = plain_.launch(issuer, kernel);
      time.repeats[i] = time.host[i] - plain_.launch(issuer, first);
    }
    return time;
  }

  void price(const Op& op, KernelId id, PricedOp& priced) {
    KernelTime& known = of_kernel_[id];
    if (known.work < 0) known = time_of(program_.kernels[id]);
    priced.kind = program_.kernels[id].kind;
    priced.work = known.work;
    priced.sagging = known.sagging;
    priced.matrix_s = static_cast<float>(known.matrix_s);
    priced.host = known.host[static_cast<std::size_t>(op.issuer)];
    priced.repeats = known.repeats[static_cast<std::size_t>(op.issuer)];
  }

  void price(const Op& op, const Collective& collective, PricedOp& priced) {
    const CollectiveKey key{collective.kind, collective.group, collective.full_size.count,
                            collective.receive_size.count, collective.carrier};
    const auto [known, added] = collectives_.try_emplace(key);
    if (added) {
      known->second.cost = plain_.collective(collective, rank_);
      known->second.demand = static_cast<std::uint16_t>(result_.demands.size());
      result_.demands.push_back(known->second.cost.demand);
      if (known->second.cost.time > 0) result_.evidence = std::max(result_.evidence, known->second.cost.evidence);
    }
    priced.work = known->second.cost.time;
    priced.collective = priced.work > 0;
    priced.resident = priced.collective && collective.carrier == Carrier::kernels;
    priced.share = share_of(collective.kind);
    priced.group = collective.group;
    priced.demand = known->second.demand;
    priced.host = plain_.launch(op.issuer, KernelKind::small);
  }

  void unroll() {
    std::size_t count = result_.ops.size();
    for (const Repeat& repeat : program_.repeats)
      count += static_cast<std::size_t>(std::max<std::int64_t>(repeat.count - 1, 0)) * (repeat.end - repeat.first);
    result_.order.reserve(count);
    const auto append = [&](OpId first, OpId end) {
      for (OpId id = first; id < end; ++id) {
        const std::uint32_t position = positions_[id - program_.steady_first];
        if (position != none) result_.order.push_back(position);
      }
    };
    OpId next = program_.steady_first;
    for (const Repeat& repeat : program_.repeats) {
      if (repeat.first < program_.steady_first || repeat.end > program_.steady_end) continue;
      append(next, repeat.first);
      for (std::int64_t i = 0; i < repeat.count; ++i) append(repeat.first, repeat.end);
      next = repeat.end;
    }
    append(next, program_.steady_end);
  }

  /// Instances and what each waits for; an edge to an op not yet issued belongs to an earlier step, which has ended.
  void resolve() {
    std::vector<std::uint32_t> latest(result_.ops.size(), none);
    std::vector<std::uint32_t> of_group(step_.groups.size(), none);
    const auto count = static_cast<std::uint32_t>(result_.order.size());
    result_.first_edge.reserve(count + 1);
    for (std::uint32_t instance = 0; instance < count; ++instance) {
      const std::uint32_t position = result_.order[instance];
      const PricedOp& priced = result_.ops[position];
      result_.first_edge.push_back(static_cast<std::uint32_t>(result_.edges.size()));
      result_.host += priced.host;
      if (priced.what != PricedOp::What::device) continue;
      for (const OpId from : priced.waits > 0 ? program_.waits(program_.ops[priced.op]) : std::span<const OpId>()) {
        if (from < program_.steady_first || from >= program_.steady_end) continue;
        const std::uint32_t at = positions_[from - program_.steady_first];
        if (at != none) hold_back(priced, latest[at]);
      }
      if (priced.resident) {
        std::uint32_t& before = of_group[priced.group];
        hold_back(priced, before);
        before = instance;
      }
      latest[position] = instance;
      const auto lane = static_cast<std::size_t>(priced.lane);
      result_.matrix_s += static_cast<double>(priced.matrix_s);
      result_.work[lane] += priced.work + plain_.kernel_gap();
      result_.sagging[lane] += priced.sagging;
      result_.lanes[lane].push_back(instance);
    }
    result_.first_edge.push_back(static_cast<std::uint32_t>(result_.edges.size()));
  }

  void hold_back(const PricedOp& priced, std::uint32_t from) {
    if (from != none && result_.of(from).lane != priced.lane) result_.edges.push_back(from);
  }

  struct Known {
    CollectiveCost cost;
    std::uint16_t demand = 0;
  };
  const RankProgram& program_;
  const StepProgram& step_;
  int rank_;
  const Prices& plain_;
  const Prices& doubled_;
  PricedProgram result_;
  std::vector<KernelTime> of_kernel_ = std::vector<KernelTime>(program_.kernels.size());
  std::vector<std::uint32_t> positions_;  ///< by op of the step: in result_.ops
  std::unordered_map<CollectiveKey, Known, HashOfKey> collectives_;
};

}  // namespace

PricedProgram priced_program(const RankProgram& program, const StepProgram& step, int rank, const Prices& plain,
                             const Prices& doubled) {
  return Flattener(program, step, rank, plain, doubled).run();
}

double sag_of(const GemmPrice& gemm, int gpus, double matrix_s, double step_s) {
  if (gemm.sag <= 1 || step_s <= 0) return 1;
  return 1 + (gemm.sag - 1) * sag_share(gemm, matrix_s / step_s, gpus);
}

double least_step_s(const PricedProgram& program, const GemmPrice& gemm, int gpus) {
  const auto longest = [&](double sag) {
    double most = to_seconds(program.host);
    for (std::size_t l = 0; l < lane_count; ++l)
      most = std::max(most, to_seconds(program.work[l]) + to_seconds(program.sagging[l]) * (sag - 1));
    return most;
  };
  double low = longest(1), high = longest(gemm.sag);
  for (int i = 0; i < 20 && low < high; ++i) {
    const double middle = (low + high) / 2;
    (longest(sag_of(gemm, gpus, program.matrix_s, middle)) >= middle ? low : high) = middle;
  }
  return low;
}

}  // namespace plimsoll
