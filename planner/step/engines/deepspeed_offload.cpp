// ZeRO stages 1 and 2 with the optimizer on the host: what stays on the GPU, what is pinned, what crosses PCIe when.
//
//   GPU    2 A of parameters and a scratch of the largest parameter, 2 Lambda; no gradient partition, no step temporary
//   host   a group: fp32 master 4 a, 16-bit staging 2 a, fp32 gradient 4 a (pinned if asked for; pinning copies), moments 8 a
//          (never pinned, from the first step on); one scratch of 2 Lambda for all
//   last backward     a reduced gradient's slice is cast to fp32 and copied into the host's gradient
//                     (with fp32 accumulation every backward adds it to sums on the GPU, 4 a, from which the last one copies)
//   earlier backward  (stage 2) the whole 16-bit gradient goes to a buffer of its own on the host; the next micro-batch brings
//                     it back through the GPU's scratch and adds; stage 1 reduces once, and keeps its sums on the GPU till then
//   step   the host's AdamW, a cast into the staging buffer, one copy to the GPU
// Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py; measured host and GPU memory by phase.
#include <algorithm>

#include "planner/step/autograd/ops.hpp"
#include "planner/step/engines/deepspeed.hpp"
#include "planner/step/engines/deepspeed_bucketed.hpp"
#include "planner/step/engines/deepspeed_checks.hpp"
#include "planner/step/groups.hpp"

namespace plimsoll {

namespace {

class OffloadedJob final : public BucketedJob {
 public:
  using BucketedJob::BucketedJob;

 private:
  struct OnHost {
    Tensor staging;   // [a], 16 bits
    Tensor gradient;  // [a], fp32
    Tensor first_moment, second_moment;
  };

  void initialize_optimizer() override;
  void keep(std::size_t group, std::size_t index, const Tensor& gradient) override;
  void optimizer_step() override;
  std::vector<Tensor> optimizer_storages() const override { return {}; }  // on the host already: written in place

  Tensor pinned(Tensor pageable, const char* name);
  void accumulate(const Parameter& parameter, const Tensor& gradient);
  void compute_norms();
  void step_on_host(std::size_t group);
  void copy(const Tensor& from, const Tensor& to, Bytes size, const char* role);

  std::vector<OnHost> host_;  // by group
  Tensor host_scratch_, scratch_;
  std::vector<Tensor> accumulated_;  // by parameter index
  std::vector<std::vector<Tensor>> norms_;
};

// The pinned copy of a pageable tensor, which goes when its owner does; without pinning, the tensor itself.
Tensor OffloadedJob::pinned(Tensor pageable, const char* name) {
  if (!plan().offload.pin_optimizer) return pageable;
  Tensor copy = trace_.host_empty(pageable.shape, pageable.dtype, name, trace_.category, true);
  trace_.record(HostWork{HostWorkKind::python, 1, copy.bytes() * 2}, Lane::host, {&pageable}, {&copy}, "pin memory");
  return copy;
}

// On the stream of the layers, also where reductions have one of their own.
void OffloadedJob::copy(const Tensor& from, const Tensor& to, Bytes size, const char* role) {
  Scoped lane(trace_.lane, Lane::compute);
  trace_.host_copy(from, to, size, role);
}

// The order is the constructor's: masters and staging group by group, the scratch, the gradients.
void OffloadedJob::initialize_optimizer() {
  host_.resize(groups_.size());
  norms_.resize(groups_.size());
  accumulated_.resize(model_->parameters_in_order.size());
  std::int64_t largest = 0;
  Tensor staging;  // the pageable source of a group's staging buffer, until the next one's replaces it
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    OptimizerGroup& group = groups_[i];
    const Shape partition{{group.partition(), Symbol::parameters}};
    for (const Parameter* parameter : group.parameters) largest = std::max(largest, parameter->numel());
    empty_cache();
    states_[i].flat = flatten(group);
    const DType narrow = states_[i].flat.dtype;
    Tensor master;
    {
      const Tensor clone = trace_.empty(partition, narrow, "clone of the partition", Category::temporaries);
      trace_.compute(Kernel::pointwise(KernelKind::flat_copy, narrow, group.partition(), clone.bytes() * 2),
                     {&states_[i].flat}, {&clone}, "clone partition");
      const Tensor moved = trace_.host_empty(partition, narrow, "partition on the host", Category::temporaries, false);
      copy(clone, moved, moved.bytes(), "partition to the host");
      master = trace_.host_empty(partition, master_dtype(), "master weights", Category::master_weights, false);
    }
    Scoped category(trace_.category, Category::master_weights);
    states_[i].master = pinned(std::move(master), "master weights");
    trace_.category = Category::parameters;
    staging = trace_.host_empty(partition, narrow, "staging of updated parameters", Category::parameters, false);
    host_[i].staging = pinned(staging, "staging of updated parameters");
  }
  const DType narrow = plan().compute_dtype();
  {
    Scoped category(trace_.category, Category::temporaries);
    host_scratch_ = pinned(
        trace_.host_empty({{largest, Symbol::parameters}}, narrow, "gradient scratch", Category::temporaries, false),
        "gradient scratch");
  }
  scratch_ = trace_.empty({{largest, Symbol::parameters}}, narrow, "gradient scratch", Category::communication_buckets);
  Tensor zeros;
  Scoped category(trace_.category, Category::gradients);
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    zeros =
        trace_.host_empty(states_[i].master.shape, master_dtype(), "gradient partition", Category::gradients, false);
    host_[i].gradient = pinned(zeros, "gradient partition");
  }
  hook_gradients();
}

// A parameter's reduced gradient: to the host as it is, or at the end of a step its slice in fp32.
void OffloadedJob::keep(std::size_t group, std::size_t index, const Tensor& gradient) {
  const OptimizerGroup& of = groups_[group];
  if (stage2() && plan().gradient_accumulation > 1 && !accumulates_fp32()) accumulate(*of.parameters[index], gradient);
  if (!boundary()) return;
  Scoped category(trace_.category, Category::temporaries);
  const Tensor slice =
      accumulates_fp32() ? slice_of_sums(group, index) : gradient.view_as({{of.slice(index, of.rank)}});
  norms_[group].push_back(deepspeed::gradient_norm(trace_, slice));
  deepspeed::check_finite(trace_, accumulates_fp32() ? slice : gradient);
  trace_.record(HostSync{Lane::compute}, Lane::host, {}, {}, "is it finite");
  Tensor wide = slice;
  if (slice.dtype != master_dtype()) {
    wide = trace_.empty(slice.shape, master_dtype(), "gradient in fp32");
    ops::launch(trace_, KernelKind::upcast, {&slice}, wide, "gradient in fp32");
  }
  copy(wide, host_[group].gradient, wide.bytes(), "gradient to the host");
}

void OffloadedJob::accumulate(const Parameter& parameter, const Tensor& gradient) {
  Tensor& sum = accumulated_[static_cast<std::size_t>(parameter.index)];
  if (!sum) {
    Scoped category(trace_.category, Category::gradients);
    sum = pinned(trace_.host_empty(parameter.shape, gradient.dtype, "accumulated gradient", Category::gradients, false),
                 "accumulated gradient");
  }
  const Bytes size = gradient.bytes();
  if (!first_micro_batch()) {
    copy(sum, scratch_, size, "accumulated gradient");
    trace_.compute(Kernel::pointwise(KernelKind::vectorized, gradient.dtype, gradient.numel(), size * 3),
                   {&gradient, &scratch_}, {&gradient}, "accumulate gradient");
  }
  if (!boundary()) copy(gradient, sum, size, "accumulated gradient to the host");
}

// Python adds up the norms that backward left on the GPU, one by one.
void OffloadedJob::compute_norms() {
  for (const OptimizerGroup& group : groups_) {
    trace_.record(HostSync{Lane::compute}, Lane::host, {}, {}, "norm of a group");
    const Tensor norm = trace_.empty({}, DType::fp32, "norm of a group", Category::temporaries);
    communicate(CollectiveKind::all_reduce, norm, Bytes(4), group_id::data_parallel, plan().world_size,
                "gradient norm");
    if (group.expert) {
      communicate(CollectiveKind::all_reduce, norm, Bytes(4), group.group, group.ranks, "norm of experts");
    }
  }
  deepspeed::truth_test(trace_, "gradient norm");
}

// Unscale (8 bytes an element), AdamW (28 with fp32 moments), cast into the staging buffer (6).
void OffloadedJob::step_on_host(std::size_t group) {
  OnHost& on_host = host_[group];
  const Tensor& master = states_[group].master;
  if (!on_host.first_moment) {
    const DType moments = plan().optimizer.moments;
    for (Tensor* moment : {&on_host.first_moment, &on_host.second_moment}) {
      *moment = trace_.host_empty(master.shape, moments, "adam moment", Category::optimizer_moments, false);
    }
  }
  const Bytes moved =
      on_host.gradient.bytes() * 3 + master.bytes() * 3 + on_host.first_moment.bytes() * 4 + on_host.staging.bytes();
  trace_.record(HostWork{HostWorkKind::cpu_adam, master.numel(), moved}, Lane::host,
                {&on_host.gradient, &master, &on_host.first_moment, &on_host.second_moment},
                {&master, &on_host.first_moment, &on_host.second_moment, &on_host.staging}, "adamw on the host");
}

void OffloadedJob::optimizer_step() {
  const Tensor flag = trace_.empty({}, DType::int8, "overflow flag", Category::temporaries);
  communicate(CollectiveKind::all_reduce, flag, Bytes(1), group_id::data_parallel, plan().world_size, "overflow flag");
  trace_.record(HostSync{Lane::compute}, Lane::host, {}, {}, "overflow flag");
  compute_norms();
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    step_on_host(i);
    copy(host_[i].staging, states_[i].flat, host_[i].staging.bytes(), "updated parameters");
    if (accumulates_fp32()) sums_of(i) = {};
  }
  gather_updated();
  for (std::vector<Tensor>& norms : norms_) norms.clear();
}

}  // namespace

void build_deepspeed_offloaded(const Scenario& scenario, int rank, RankProgram& program) {
  OffloadedJob(scenario, rank, program).run();
}

}  // namespace plimsoll
