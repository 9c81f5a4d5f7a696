// The reduction buckets of ZeRO stages 1 and 2 (planner/step/engines/deepspeed_buckets.hpp).
#include "planner/step/engines/deepspeed_buckets.hpp"

#include <algorithm>

#include "planner/step/groups.hpp"

namespace plimsoll {

namespace {

Kernel copy_kernel(std::int64_t elements, DType dtype, std::size_t launches = 1) {
  Kernel kernel = Kernel::pointwise(KernelKind::flat_copy, dtype, elements, Elements(2 * elements) * dtype);
  kernel.launches = static_cast<std::uint16_t>(std::min<std::size_t>(launches, 65535));
  return kernel;
}

}  // namespace

GradientBuckets::GradientBuckets(Trace& trace, const Plan& plan, const std::vector<OptimizerGroup>& groups)
    : trace_(trace), plan_(plan), groups_(groups) {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t i = 0; i < groups[g].parameters.size(); ++i) {
      const auto index = static_cast<std::size_t>(groups[g].parameters[i]->index);
      if (place_.size() <= index) place_.resize(index + 1);
      place_[index] = {g, i};
    }
  }
}

bool GradientBuckets::sums_fp32() const {
  return plan_.zero.stage == 1 && adds_slices() && plan_.offload.optimizer == OffloadDevice::none;
}

void GradientBuckets::set_up() {
  if (!buffers_.empty() || !plan_.zero.contiguous_gradients) return;
  const DType dtype = sums_fp32() ? DType::fp32 : plan_.compute_dtype();
  for (int i = 0; i < (plan_.zero.overlap_comm ? 2 : 1); ++i) {
    buffers_.push_back(trace_.empty({{plan_.zero.reduce_bucket_size, Symbol::bucket}}, dtype, "reduce bucket",
                                    Category::communication_buckets));
  }
  current_ = 0;
}

void GradientBuckets::add(Parameter& parameter) {
  const std::int64_t numel = parameter.numel();
  if (elements_ + numel > plan_.zero.reduce_bucket_size) {
    reduce();
    if (plan_.zero.overlap_comm && plan_.zero.contiguous_gradients) {
      trace_.wait_for(Lane::reduce, Lane::compute);
      current_ = 1 - current_;
    }
  }
  const auto [group, index] = place_[static_cast<std::size_t>(parameter.index)];
  Tensor gradient = std::move(parameter.grad);
  if (plan_.zero.contiguous_gradients && numel <= plan_.zero.reduce_bucket_size) {
    Tensor slice = buffers_[current_].view_as({{numel}});
    trace_.compute(copy_kernel(numel, gradient.dtype), {&gradient}, {&slice}, "gradient into the bucket");
    gradient = std::move(slice);
  }
  elements_ += numel;
  entries_.push_back({group, index, std::move(gradient)});
}

// In the bucket's order; a parameter that straddles partitions has a slice for each.
std::vector<GradientBuckets::Slice> GradientBuckets::slices() const {
  std::vector<Slice> result;
  for (const Entry& entry : entries_) {
    const OptimizerGroup& group = groups_[entry.group];
    const std::int64_t partition = group.partition();
    const std::int64_t end = group.offsets[entry.index] + group.parameters[entry.index]->numel();
    std::int64_t begin = group.offsets[entry.index];
    for (std::int64_t owner = begin / partition; owner < group.ranks && begin < end; ++owner) {
      const std::int64_t elements = std::min(end, (owner + 1) * partition) - begin;
      begin += elements;
      const bool joined = !result.empty() && result.back().group == group.group && result.back().owner == owner &&
                          !(adds_slices() && owner == group.rank);
      if (joined) {
        result.back().elements += elements;
      } else {
        result.push_back({group.group, owner, group.ranks, group.rank, elements});
      }
    }
  }
  return result;
}

void GradientBuckets::reduce() {
  if (entries_.empty()) return;
  const bool overlap = plan_.zero.overlap_comm;
  Scoped lane(trace_.lane, overlap ? Lane::reduce : Lane::compute);
  Scoped category(trace_.category, Category::communication_buckets);
  if (overlap) {
    trace_.wait_for(Lane::compute, Lane::reduce);
    trace_.wait_for(Lane::reduce, Lane::compute);
  }
  const bool contiguous = plan_.zero.contiguous_gradients;
  if (!contiguous && overlap) {
    trace_.record(HostSync{Lane::compute}, Lane::host, {}, {}, "before a reduction");
    trace_.record(HostSync{Lane::reduce}, Lane::host, {}, {}, "before a reduction");
  }
  if (plan_.zero.stage > 1) reduced_.clear();
  const Tensor source = entries_.front().gradient;
  if (contiguous || entries_.size() == 1) average(source);
  const std::vector<Slice> all = slices();
  if (!contiguous && entries_.size() > 1) {
    reduce_separate();
  } else if (!contiguous) {
    Tensor view = source.view_as({{elements_}});
    communicate(view, all.front());
  } else if (plan_.zero.reduce_scatter) {
    claim_groups();
    reduce_together(source, all);
  } else {
    Tensor view = source.view_as({{elements_}});
    communicate(view, all.front());
  }
  add_slices();
  for (Entry& entry : entries_) {
    const OptimizerGroup& group = groups_[entry.group];
    const bool mine = group.slice(entry.index, group.rank) > 0;
    const bool in_bucket = contiguous && entry.gradient.numel() <= plan_.zero.reduce_bucket_size;
    if (mine) keep(entry.group, entry.index, entry.gradient);
    if (!mine && !in_bucket && (plan_.zero.stage == 1 || (overlap && !contiguous)))
      reduced_.push_back(std::move(entry.gradient));
    entry.gradient = {};
  }
  entries_.clear();
  elements_ = 0;
}

// Where slices are added in fp32, their sums are there before they are reduced.
void GradientBuckets::claim_groups() {
  if (!adds_slices()) return;
  for (const Entry& entry : entries_) {
    if (groups_[entry.group].slice(entry.index, groups_[entry.group].rank) > 0) claim(entry.group);
  }
}

void GradientBuckets::add_slices() {
  if (!adds_slices()) return;
  for (const Entry& entry : entries_) {
    if (groups_[entry.group].slice(entry.index, groups_[entry.group].rank) > 0)
      sum(entry.group, entry.index, entry.gradient);
  }
  flat_ = {};
}

void GradientBuckets::average(const Tensor& gradients) {
  const DType dtype = gradients.dtype;
  trace_.compute(Kernel::pointwise(KernelKind::vectorized, dtype, elements_, Elements(2 * elements_) * dtype),
                 {&gradients}, {&gradients}, "average gradients");
}

// Without a bucket the gradients are where autograd put them: flattened, reduced, and all copied back.
void GradientBuckets::reduce_separate() {
  std::vector<const Tensor*> gradients;
  for (const Entry& entry : entries_) gradients.push_back(&entry.gradient);
  if (gradients.size() > 255) gradients.resize(255);  // operands of one op; sizes are those of all
  Tensor flat = trace_.empty({{elements_}}, gradients.front()->dtype, "flattened gradients");
  trace_.compute(copy_kernel(elements_, flat.dtype), gradients, {&flat}, "flatten gradients");
  average(flat);
  communicate(flat, slices().front());
  trace_.compute(copy_kernel(elements_, flat.dtype, entries_.size()), {&flat}, gradients, "take gradients back");
}

// One collective a process group in order of appearance, or one a process group and owner.
void GradientBuckets::reduce_together(const Tensor& source, const std::vector<Slice>& all) {
  const bool by_owner = !plan_.zero.use_multi_rank_bucket_allreduce;
  const auto alike = [&](const Slice& slice) { return slice.group == all.front().group; };
  std::vector<std::vector<Slice>> sets;
  const bool is_one = !by_owner && std::all_of(all.begin(), all.end(), alike);
  if (is_one) sets.push_back(all);
  for (const Slice& slice : is_one ? std::span<const Slice>() : std::span<const Slice>(all)) {
    const auto found = std::find_if(sets.begin(), sets.end(), [&](const std::vector<Slice>& set) {
      return set.front().group == slice.group && (!by_owner || set.front().owner == slice.owner);
    });
    if (found != sets.end()) {
      found->push_back(slice);
    } else {
      sets.push_back({slice});
    }
  }
  for (const std::vector<Slice>& set : sets) {
    std::size_t first = 0;  // of those that go together
    std::int64_t elements = 0;
    for (std::size_t i = 0; i < set.size(); ++i) {
      elements += set[i].elements;
      if (elements <= plan_.zero.reduce_bucket_size && i + 1 < set.size()) continue;
      reduce_once(source, std::span<const Slice>(set).subspan(first, i + 1 - first), elements);
      first = i + 1;
      elements = 0;
    }
  }
}

void GradientBuckets::reduce_once(const Tensor& source, std::span<const Slice> chunk, std::int64_t elements) {
  const Slice& first = chunk.front();
  if (chunk.size() == 1) {
    Tensor view = source.view_as({{elements}});
    communicate(view, first);
    return;
  }
  Tensor flat = trace_.empty({{elements}}, source.dtype, "flattened gradients");
  trace_.compute(copy_kernel(elements, source.dtype), {&source}, {&flat}, "flatten gradients");
  communicate(flat, first);
  std::int64_t mine = 0;
  std::size_t copies = 0;
  for (const Slice& slice : chunk) {
    if (slice.owner != slice.my_rank) continue;
    mine += slice.elements;
    ++copies;
  }
  if (mine > 0) trace_.compute(copy_kernel(mine, source.dtype, copies), {&flat}, {&source}, "take own gradients back");
  if (adds_slices()) flat_ = std::move(flat);
}

// In the communication type, through a cast copy where that is another one.
void GradientBuckets::communicate(Tensor& tensor, const Slice& slice) {
  Tensor wire = tensor;
  const bool cast = plan_.communication_dtype != tensor.dtype;
  if (cast) {
    wire = trace_.empty(tensor.shape, plan_.communication_dtype, "gradients in the communication type");
    const bool up = size_of(wire.dtype) > size_of(tensor.dtype);
    trace_.compute(Kernel::pointwise(up ? KernelKind::upcast : KernelKind::vectorized, wire.dtype, wire.numel(),
                                     wire.bytes() + tensor.bytes()),
                   {&tensor}, {&wire}, "cast gradients");
  }
  if (slice.ranks > 1) {
    trace_.host_work(HostWorkKind::collective_issue, 1, "reduce gradients");
    // A reduction to one owner sends, as a broadcast does, the whole buffer along a chain.
    const CollectiveKind kind = plan_.zero.reduce_scatter && !plan_.zero.use_multi_rank_bucket_allreduce
                                    ? CollectiveKind::broadcast
                                    : CollectiveKind::all_reduce;
    trace_.collective({kind, wire.dtype, slice.group, wire.bytes(), {}}, {&wire}, {&wire}, "reduce gradients");
  }
  if (cast) {
    trace_.compute(
        Kernel::pointwise(KernelKind::vectorized, tensor.dtype, tensor.numel(), wire.bytes() + tensor.bytes()), {&wire},
        {&tensor}, "cast gradients back");
  }
}

void GradientBuckets::release() {
  buffers_.clear();
  reduced_.clear();
}

}  // namespace plimsoll
