// ZeRO stages 1 and 2: optimizer state, at stage 2 also gradients, partitioned (DeepSpeedZeroOptimizer).
//
// Gradients of a rank's partition are kept whole: G = all elements of every parameter that touches it, one buffer for all
// groups, from the first reduction that brings one to the step, where each group's slices are joined (2 a), cast to fp32
// (4 a) and stepped with.
// At stage 2 every micro-batch from the second on fills a second buffer of 2 G, added into the first.
// With fp32 accumulation, where BF16_Optimizer does not apply, it is the slices alone, in fp32 and by group (4 a), each added
// through a copy in fp32; they lie as the master does, so that the step takes them as they are.
// Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py; the allocator trace of a step, event by event.
#include "planner/step/autograd/ops.hpp"
#include "planner/step/engines/deepspeed.hpp"
#include "planner/step/engines/deepspeed_bucketed.hpp"
#include "planner/step/engines/deepspeed_checks.hpp"
#include "planner/step/groups.hpp"

namespace plimsoll {

namespace {

class PartitionedJob final : public BucketedJob {
 public:
  PartitionedJob(const Scenario& scenario, int rank, RankProgram& program)
      : BucketedJob(scenario, rank, program), averaged_(groups_.size()) {
    for (const OptimizerGroup& group : groups_) {
      for (std::size_t i = 0; i < group.parameters.size(); ++i) {
        if (group.slice(i, group.rank) > 0) kept_elements_ += group.parameters[i]->numel();
      }
    }
  }

 private:
  using Pieces = std::vector<Tensor>;  // this rank's slices of one group's gradients

  void initialize_optimizer() override;
  void optimizer_step() override;
  void keep(std::size_t group, std::size_t index, const Tensor& gradient) override;
  void finish_reductions() override;

  void pad(std::size_t group, Pieces& pieces);
  void check_overflow();
  void compute_norms();
  Tensor joined_gradient(std::size_t group);

  std::int64_t kept_elements_ = 0;  // G
  Tensor partition_;                // 2 G of this micro-batch
  std::vector<Pieces> arriving_;    // by group, of this micro-batch
  std::vector<Pieces> averaged_;    // by group, of the step so far
};

// Gradients of zeros are attached to all masters, as if to step with them, and dropped.
void PartitionedJob::initialize_optimizer() {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    empty_cache();
    states_[i].flat = flatten(groups_[i]);
    states_[i].master = make_master(groups_[i], states_[i].flat);
  }
  std::vector<Tensor> zeros;
  for (const State& state : states_) {
    zeros.push_back(trace_.empty(state.master.shape, state.master.dtype, "zero gradients", Category::temporaries));
    ops::launch(trace_, KernelKind::fill, {}, zeros.back(), "zero gradients");
  }
  for (Tensor& zero : zeros) zero = {};
  hook_gradients();
}

// A gradient that touches this rank's partition, reduced: copied whole behind the others.
void PartitionedJob::keep(std::size_t group, std::size_t index, const Tensor& gradient) {
  if (arriving_.empty()) arriving_.resize(groups_.size());
  const OptimizerGroup& of = groups_[group];
  Pieces& pieces = accumulates_fp32() ? averaged_[group] : arriving_[group];
  if (pieces.empty()) pieces.resize(of.parameters.size());
  if (accumulates_fp32()) {
    pieces[index] = slice_of_sums(group, index);
    return;
  }
  const Shape slice{{of.slice(index, of.rank)}};
  if (!plan().zero.contiguous_gradients) {  // stays where autograd put it
    pieces[index] = gradient.view_as(slice);
    return;
  }
  if (!partition_) {
    partition_ =
        trace_.empty({{kept_elements_, Symbol::parameters}}, gradient.dtype, "gradient partition", Category::gradients);
  }
  const Tensor whole = partition_.view_as(of.parameters[index]->shape);
  trace_.compute(Kernel::pointwise(KernelKind::flat_copy, whole.dtype, whole.numel(), whole.bytes() * 2), {&gradient},
                 {&whole}, "keep gradient");
  pieces[index] = partition_.view_as(slice);
}

// The end of a backward's reductions: what came is the step's gradient so far, or is added to it.
void PartitionedJob::finish_reductions() {
  arriving_.resize(groups_.size());
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (accumulates_fp32()) {
      if (boundary()) sums_of(i);
      continue;
    }
    Pieces pieces;
    for (Tensor& piece : arriving_[i]) {
      if (piece) pieces.push_back(std::move(piece));
    }
    if (averaged_[i].empty()) {
      averaged_[i] = std::move(pieces);
      pad(i, averaged_[i]);
      continue;
    }
    for (std::size_t k = 0; k < pieces.size(); ++k) {
      ops::launch(trace_, KernelKind::vectorized, {&averaged_[i][k], &pieces[k]}, averaged_[i][k],
                  "accumulate gradient");
    }
  }
  arriving_.clear();
  partition_ = {};
}

// The last partition ends in padding.
void PartitionedJob::pad(std::size_t group, Pieces& pieces) {
  std::int64_t elements = 0;
  for (const Tensor& piece : pieces) elements += piece.numel();
  const std::int64_t missing = groups_[group].partition() - elements;
  if (missing == 0) return;
  pieces.push_back(trace_.empty({{missing}}, plan().compute_dtype(), "padding of gradients", Category::gradients));
  ops::launch(trace_, KernelKind::fill, {}, pieces.back(), "padding of gradients");
}

// Every gradient of this rank is looked at, then the ranks agree.
void PartitionedJob::check_overflow() {
  if (plan().precision == Precision::fp32) return;
  for (const Pieces& pieces : averaged_) {
    for (const Tensor& piece : pieces) deepspeed::check_finite(trace_, piece);
  }
  const Tensor flag = trace_.empty({}, DType::int8, "overflow flag", Category::temporaries);
  communicate(CollectiveKind::all_reduce, flag, Bytes(1), group_id::data_parallel, plan().world_size, "overflow flag");
  trace_.record(HostSync{Lane::compute}, Lane::host, {}, {}, "overflow flag");
}

// One norm a group over all ranks; those of experts are averaged over the ranks that hold the same.
void PartitionedJob::compute_norms() {
  std::vector<Tensor> of_groups;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    std::vector<Tensor> norms;
    for (const Tensor& piece : averaged_[i]) norms.push_back(deepspeed::gradient_norm(trace_, piece));
    of_groups.push_back(deepspeed::joined_norm(trace_, norms));
    communicate(CollectiveKind::all_reduce, of_groups.back(), Bytes(4), group_id::data_parallel, plan().world_size,
                "gradient norm");
    deepspeed::small_kernels(trace_, 6, "norm of a group");
    trace_.record(HostSync{Lane::compute}, Lane::host, {}, {}, "norm of a group");
  }
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (!groups_[i].expert) continue;
    deepspeed::small_kernels(trace_, 2, "norm of experts");
    communicate(CollectiveKind::all_reduce, of_groups[i], Bytes(4), groups_[i].group, groups_[i].ranks,
                "norm of experts");
  }
  deepspeed::small_kernels(trace_, 12, "gradient norm");
  deepspeed::truth_test(trace_, "gradient norm");
}

// Slices joined, cast to the master's type; of a single slice there is nothing to join.
Tensor PartitionedJob::joined_gradient(std::size_t group) {
  if (accumulates_fp32()) return std::move(sums_of(group));
  Pieces& pieces = averaged_[group];
  const Shape shape{{groups_[group].partition(), Symbol::parameters}};
  Tensor flat = pieces.front().view_as(shape);
  if (pieces.size() > 1) {
    flat = trace_.empty(shape, flat.dtype, "flat gradients", Category::temporaries);
    std::vector<const Tensor*> parts;
    for (const Tensor& piece : pieces) parts.push_back(&piece);
    if (parts.size() > 255) parts.resize(255);  // operands of one op; sizes are those of all
    trace_.compute(Kernel::pointwise(KernelKind::flat_copy, flat.dtype, flat.numel(), flat.bytes() * 2), parts, {&flat},
                   "join gradients");
  }
  if (flat.dtype == master_dtype()) return flat;
  Tensor wide = trace_.empty(shape, master_dtype(), "gradients in fp32", Category::temporaries);
  ops::launch(trace_, KernelKind::upcast, {&flat}, wide, "gradients in fp32");
  return wide;
}

void PartitionedJob::optimizer_step() {
  for (Pieces& pieces : averaged_) std::erase_if(pieces, [](const Tensor& piece) { return !piece; });
  check_overflow();
  compute_norms();
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const Tensor gradient = joined_gradient(i);
    averaged_[i].clear();
    deepspeed::truth_test(trace_, "gradient norm");
    deepspeed::unscale(trace_, gradient);
    update(i, gradient);
  }
  gather_updated();
}

}  // namespace

void build_deepspeed_partitioned(const Scenario& scenario, int rank, RankProgram& program) {
  PartitionedJob(scenario, rank, program).run();
}

}  // namespace plimsoll
