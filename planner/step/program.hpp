// What does one rank do, op by op?  The step program: the buffers and the ops of a training job in issue order, as data.
// It is built once (planner/step/build_step.hpp) and read by every interpreter: the ledger, the allocator replay, the
// volumes, the simulator, the runtime.
//
// Rules: `ops` stand in the order in which the host enqueues them.  A lane runs its ops one at a time in that order.  An op
// starts when its lane reaches it and every op in its `after` list has ended; a collective starts when all members have
// reached it.  Alloc and Free take no time.  A size is stated once, in a buffer or an action; all else is derived from it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "planner/base/quantity.hpp"
#include "planner/spec/collective.hpp"
#include "planner/spec/grouped_tiles.hpp"
#include "planner/step/call.hpp"

namespace plimsoll {

using OpId = std::uint32_t;
using KernelId = std::uint32_t;
using GroupId = std::uint16_t;

/// A queue of ops: a CUDA stream (and the allocator's pool that belongs to it), a swim-lane, a simulator queue.
enum class Lane : std::uint8_t { compute, gather, reduce, exchange, copy_in, copy_out, host };
inline constexpr int lane_count = 7;
const char* name_of(Lane lane);

/// What a buffer is for; the names of the ledger's categories.
enum class Category : std::uint8_t {
  parameters,
  gradients,
  master_weights,
  optimizer_moments,
  gathered_parameters,
  activations,
  expert_buffers,
  logits_and_loss,
  communication_buckets,
  temporaries,
  workspace
};
inline constexpr int category_count = 11;
const char* name_of(Category category);

/// The letter under which a dimension is known in the formulas.
enum class Symbol : std::uint8_t {
  number,         ///< no symbol: a plain count
  tokens,         ///< N = micro_batch * sequence
  batch,          ///< b
  sequence,       ///< S
  hidden,         ///< h
  q_width,        ///< q = query heads * head size
  kv_width,       ///< kv
  heads,          ///< A, query heads
  kv_heads,       ///< K
  head_dim,       ///< d
  intermediate,   ///< I, MLP or expert width
  vocab,          ///< V
  experts,        ///< E
  local_experts,  ///< El = E / ep
  rows,           ///< R, routed rows on this rank
  padded_rows,    ///< R'
  capacity,       ///< C
  top_k,          ///< k
  parameters,     ///< a count of parameters (the buffer's name says which)
  bucket,         ///< B
};
const char* letter_of(Symbol symbol);

struct Dim {
  std::int64_t size = 1;
  Symbol symbol = Symbol::number;
};

/// Up to four dimensions; numel is their product.
struct Shape {
  std::array<std::int64_t, 4> sizes{1, 1, 1, 1};
  std::array<Symbol, 4> symbols{};
  int rank = 0;  // as wide as the symbols together: a shape is copied in pieces that were written whole

  Shape() = default;
  Shape(std::initializer_list<Dim> dims) {
    for (const Dim& dim : dims) push(dim);
  }
  void push(Dim dim) {
    sizes[static_cast<std::size_t>(rank)] = dim.size;
    symbols[static_cast<std::size_t>(rank)] = dim.symbol;
    ++rank;
  }
  Dim dim(int index) const {
    return {sizes[static_cast<std::size_t>(index)], symbols[static_cast<std::size_t>(index)]};
  }
  Dim last() const { return dim(rank - 1); }
  std::int64_t numel() const { return sizes[0] * sizes[1] * sizes[2] * sizes[3]; }
};

/// A block of memory from its Alloc to its Free.
struct BufferDecl {
  Shape shape;
  Bytes size;             ///< as requested: shape.numel() * size_of(dtype)
  const char* name = "";  ///< "mlp.up output"; text lives in the program's names or is a literal
  std::int16_t layer = -1;
  DType dtype = DType::bf16;
  Category category = Category::activations;
  Lane pool = Lane::compute;  ///< the stream from whose pool the block comes; Lane::host: host memory
  bool pinned = false;        ///< host memory only
};

/// What a kernel does; the simulator prices each kind by its own rule (facts: kernels per class, measured).
enum class KernelKind : std::uint8_t {
  gemm,               ///< m x n x k, batch times
  grouped_gemm,       ///< m rows in all, n, k, batch = groups
  attention_forward,  ///< batch * heads = batch, m = query length, n = key length, k = head size, causal
  attention_backward,
  vectorized,  ///< contiguous elementwise: add, mul, pow, scale, downcast
  silu,
  silu_backward,
  fill,
  upcast,
  upcast_fp64,  ///< bf16 -> fp32, bf16 -> fp64
  strided_neg,
  strided_copy,
  strided_add,
  strided_mul,
  strided_accumulate,
  broadcast_weight,  ///< norm weight times x
  broadcast_row,     ///< fp32 x times a value per row
  expanded_divide,
  scalar_tensor_mul,
  mixed_mul,
  unscale,
  concatenate,  ///< rotate-half and other unvectorised concatenations
  flat_copy,    ///< flatten, bucket copies, device-to-device copies
  reduce_last,
  reduce_rows,
  reduce_norm,
  reduce_amax,
  log_softmax,
  log_softmax_backward,
  softmax,
  softmax_backward,
  gather_rows,
  index_put,
  index_put_backward,
  index_add,
  fused_swiglu,
  fused_swiglu_backward,
  fused_norm,
  fused_norm_backward,
  fused_rotary,
  embedding_backward,
  token_cumsum,
  sort_pass,
  topk,
  memset,
  small,
  fsdp_copy_in,
  fsdp_copy_in_cast,
  fsdp_copy_out,
  chunk_concatenate,
  adamw,
  adamw_pass,          ///< fused AdamW; one elementwise pass of the foreach or single form
  compiled_pointwise,  ///< one fused pointwise kernel of a compiled layer
};
inline constexpr int kernel_kind_count = static_cast<int>(KernelKind::compiled_pointwise) + 1;
const char* name_of(KernelKind kind);

/// Which product of a linear layer y = x W^T.  Every row that one of them reads or writes is as long as one of the layer's widths.
enum class LinearProduct : std::uint8_t { none, forward, to_input, to_weight };

/// A launch, by its sizes.  Pointwise kinds use `elements` (of the output) and `bytes` (read + written).
struct Kernel {
  KernelKind kind = KernelKind::small;
  DType dtype = DType::bf16;
  std::uint16_t launches = 1;
  std::int64_t m = 0, n = 0, k = 0, batch = 1;
  std::int64_t elements = 0;
  Bytes bytes;
  GroupedTiles tiles;     ///< of a grouped product of PyTorch's; none: another's
  bool compiled = false;  ///< launched by compiled code, which costs the host far less than an eager operation
  LinearProduct linear = LinearProduct::none;
  bool operator==(const Kernel&) const = default;
  /// Floating-point operations of GEMMs and attention (causal: half the square); 0 for the rest.
  Flops flops() const;

  /// A kernel priced by the elements of its output and the bytes that it reads and writes.
  static Kernel pointwise(KernelKind kind, DType dtype, std::int64_t elements, Bytes bytes) {
    Kernel kernel;
    kernel.kind = kind;
    kernel.dtype = dtype;
    kernel.elements = elements;
    kernel.bytes = bytes;
    return kernel;
  }
  /// C[m,n] = A[m,k] B[k,n], `batch` times.
  static Kernel gemm(std::int64_t m, std::int64_t n, std::int64_t k, DType dtype, std::int64_t batch = 1) {
    Kernel kernel;
    kernel.kind = KernelKind::gemm;
    kernel.dtype = dtype;
    kernel.m = m;
    kernel.n = n;
    kernel.k = k;
    kernel.batch = batch;
    kernel.elements = batch * m * n;
    kernel.bytes = Elements(batch * (m * n + m * k + k * n)) * dtype;
    return kernel;
  }
  /// One of a linear layer: forward m rows, n = out, k = in; to_input n = in, k = out; to_weight m = out, n = in, k rows.
  static Kernel linear_gemm(LinearProduct product, std::int64_t m, std::int64_t n, std::int64_t k, DType dtype) {
    Kernel kernel = gemm(m, n, k, dtype);
    kernel.linear = product;
    return kernel;
  }
  /// `groups` GEMMs in one launch, m rows in all.
  static Kernel grouped_gemm(std::int64_t m, std::int64_t n, std::int64_t k, DType dtype, std::int64_t groups) {
    Kernel kernel = gemm(m, n, k, dtype);
    kernel.kind = KernelKind::grouped_gemm;
    kernel.batch = groups;
    kernel.bytes = Elements(m * n + m * k + groups * k * n) * dtype;
    return kernel;
  }
};

struct Compute {
  KernelId kernel = 0;
  std::uint32_t call = 0;  ///< into RankProgram::calls; 0: not stated
};
struct Collective {
  CollectiveKind kind = CollectiveKind::all_gather;
  DType dtype = DType::bf16;
  GroupId group = 0;
  Carrier carrier = Carrier::kernels;  ///< beside what is as small, so that an op is one line of the cache
  Bytes full_size;                     ///< S of nccl-tests: the larger side; all_to_all: this rank's whole send buffer
  Bytes receive_size;  ///< all_to_all with uneven splits: this rank's whole receive buffer; else equal to full_size

  Collective() = default;
  Collective(CollectiveKind kind, DType dtype, GroupId group, Bytes full_size, Bytes receive_size,
             Carrier carrier = Carrier::kernels)
      : kind(kind), dtype(dtype), group(group), carrier(carrier), full_size(full_size), receive_size(receive_size) {}
};
struct Send {
  GroupId group = 0;
  Bytes size;
};
struct Receive {
  GroupId group = 0;
  Bytes size;
};
struct HostCopy {
  bool to_device = true;
  bool pinned = true;
  Bytes size;
};

/// Work of the host thread beyond launching kernels.
enum class HostWorkKind : std::uint8_t {
  fsdp_forward_hook,
  fsdp_backward_hook,
  zero3_module_hook,
  zero3_parameter,  ///< a parameter is asked for in a gather, waited for, or released
  collective_issue,
  accumulate_grad,
  zero_grad_hook,
  zero3_grad_hook,
  optimizer_parameter,
  cpu_adam,
  routing_counts,
  python,
};
inline constexpr int host_work_kind_count = static_cast<int>(HostWorkKind::python) + 1;
const char* name_of(HostWorkKind kind);
struct HostWork {
  HostWorkKind kind = HostWorkKind::python;
  std::int64_t count = 1;
  Bytes bytes;
};
struct HostSync {
  Lane waits_for = Lane::compute;
};  ///< the host waits until that lane has drained
struct Alloc {
  BufferId buffer = 0;
};
struct Free {
  BufferId buffer = 0;
};
/// The framework gives wholly free segments back to the driver.
struct EmptyCache {};

using Action = std::variant<Compute, Collective, Send, Receive, HostCopy, HostWork, HostSync, Alloc, Free, EmptyCache>;

/// Which thread issues the op: it decides what a launch costs the host.
enum class Issuer : std::uint8_t { forward, backward, optimizer };

/// One line of the cache: a job has some hundred thousand.
struct alignas(64) Op {
  Action action;
  Lane lane = Lane::compute;
  Issuer issuer = Issuer::forward;
  std::uint16_t after_count = 0;
  std::int16_t layer = -1;
  std::uint16_t micro_batch = 0;
  std::uint32_t read_count = 0, write_count = 0;
  std::uint32_t first_ref = 0;    ///< into RankProgram::refs: read buffers, then written ones
  std::uint32_t first_after = 0;  ///< into RankProgram::after
  const char* role = "";          ///< "self_attn.q_proj", "loss", ...
};
static_assert(sizeof(Op) == 64);

/// A phase of the job: ops [first, end).  Names as in the ledger: model_built, initialized, first_step_forward, ...,
/// steady_step, save_16bit, save_checkpoint.
struct PhaseSpan {
  const char* name = "";
  OpId first = 0;
  OpId end = 0;
};

/// Ops [first, end) stand for `count` equal micro-batches in a row; what they allocate and free balances.
struct Repeat {
  OpId first = 0;
  OpId end = 0;
  std::int64_t count = 1;
};

/// The whole job of one rank: construction, first step, a steady step.
/// It moves and is never copied: names of buffers and roles point into `names`, a copy's would into the original's.
struct RankProgram {
  RankProgram() = default;
  RankProgram(RankProgram&&) = default;
  RankProgram& operator=(RankProgram&&) = default;

  std::vector<BufferDecl> buffers;
  std::vector<Op> ops;
  std::vector<Kernel> kernels;
  std::vector<std::uint32_t> refs;
  std::vector<std::int64_t> offsets;  ///< parallel to refs: where in the buffer the operand starts, in its elements
  std::vector<Call> calls;            ///< [0] is none
  std::vector<double> constants;      ///< tables that calls name by their first entry
  std::vector<OpId> after;
  std::vector<PhaseSpan> phases;
  std::vector<Repeat> repeats;
  std::deque<std::string> names;  ///< text that buffer names and roles point into
  OpId steady_first = 0;          ///< the steady step is ops [steady_first, steady_end)
  OpId steady_end = 0;
  // For interpreters that execute the program; empty where the engine does not state it.
  std::vector<FlatGroup> flat_groups;
  std::vector<ParameterSlot> slots;
  ReportLayout report;
  FeedLayout feed;

  std::span<const std::uint32_t> reads(const Op& op) const { return {refs.data() + op.first_ref, op.read_count}; }
  std::span<const std::uint32_t> writes(const Op& op) const {
    return {refs.data() + op.first_ref + op.read_count, op.write_count};
  }
  std::span<const OpId> waits(const Op& op) const { return {after.data() + op.first_after, op.after_count}; }
};

/// Ranks i, i + stride, i + 2 stride, ... `size` of them: every group of the meshes used here has this form.
struct Group {
  std::string name;  ///< "dp", "edp", "ep", "shard", "replicate"
  int size = 1;
  int stride = 1;
};

struct RankClass {
  RankProgram program;
  int ranks = 1;  ///< how many ranks run it
  int example_rank = 0;
};

struct StepProgram {
  std::vector<RankClass> classes;
  std::vector<Group> groups;
  int world_size = 1;
  std::int64_t gradient_accumulation = 1;
  std::int64_t tokens_per_step_per_rank = 0;
  double model_flops_per_step_per_rank = 0;  ///< forward and backward of the model, no recomputation
  std::string digest;                        ///< of the structure: ops, lanes, groups and the sizes that the plan fixes
};

}  // namespace plimsoll
