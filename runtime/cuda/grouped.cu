// Grouped products on the device (runtime/cuda/grouped.hpp), row-major throughout.
//   form 0  M = rows of the expert, N = n, K = k    A = x,    B = W^T  (both with K contiguous)
//   form 1  M = rows of the expert, N = n, K = k    A = x,    B = W    (N contiguous)
//   form 2  M = n, N = k, K = rows of the expert    A = a^T (M contiguous), B = b (N contiguous); the longest first, so that the
//           last tiles to be taken are short ones
// A small kernel turns the counts into pointers and sizes; the product's blocks find their tiles by them.  More blocks are
// launched than multiprocessors, so that those which share theirs with a collective delay only a few tiles.
#include <cutlass/cutlass.h>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <fmt/format.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/group_array_problem_shape.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include "planner/base/machine_error.hpp"
#include "runtime/cuda/check_cuda.hpp"
#include "runtime/cuda/grouped.hpp"

namespace plimsoll::cuda {

namespace {

using Number = cutlass::bfloat16_t;
using Problem = cute::Shape<int, int, int>;
using Problems = cutlass::gemm::GroupProblemShape<Problem>;
using RowMajor = cutlass::layout::RowMajor;
using ColumnMajor = cutlass::layout::ColumnMajor;
constexpr int aligned = 8;          // elements in 16 bytes
constexpr int rows_of_nothing = 8;  // of zeros, that stand for the rows of an expert that has none
constexpr int blocks_a_processor = 2;

/// CUTLASS's kernel for one form.
template <class LayoutA, class LayoutB, class Tile, class Cluster>
struct Kernel {
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, Number, RowMajor*, aligned, Number, RowMajor*,
      aligned, cutlass::epilogue::PtrArrayTmaWarpSpecializedCooperative,
      cutlass::epilogue::fusion::LinearCombination<Number, float>>::CollectiveOp;
  using Loop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Number, LayoutA*, aligned, Number, LayoutB*, aligned, float,
      Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperative>::CollectiveOp;
  using Gemm =
      cutlass::gemm::device::GemmUniversalAdapter<cutlass::gemm::kernel::GemmUniversal<Problems, Loop, Epilogue>>;
  using StrideA = typename Gemm::GemmKernel::InternalStrideA;
  using StrideB = typename Gemm::GemmKernel::InternalStrideB;
  using StrideD = typename Gemm::GemmKernel::InternalStrideD;
};

using Tile = cute::Shape<cute::_128, cute::_256, cute::_64>;
// Rows of an expert fill no whole number of tiles: clusters lie along the other side.
using AlongColumns = cute::Shape<cute::_1, cute::_2, cute::_1>;
using AlongRows = cute::Shape<cute::_2, cute::_1, cute::_1>;
using Forward = Kernel<RowMajor, ColumnMajor, Tile, AlongColumns>;
using Backward = Kernel<RowMajor, RowMajor, Tile, AlongColumns>;
using Weights = Kernel<ColumnMajor, RowMajor, Tile, AlongRows>;

/// What a kernel reads of its groups; all on the device.  A stride is one number, the elements from a row to the next.
struct Groups {
  const Number** a = nullptr;
  const Number** b = nullptr;
  Number** y = nullptr;
  std::int64_t* stride_a = nullptr;
  std::int64_t* stride_b = nullptr;
  std::int64_t* stride_y = nullptr;
  Problem* problems = nullptr;
};
static_assert(sizeof(Forward::StrideA) == 8 && sizeof(Forward::StrideB) == 8 && sizeof(Forward::StrideD) == 8 &&
              sizeof(Weights::StrideA) == 8 && sizeof(Backward::StrideB) == 8);

/// A thread an expert, one block.
__global__ void describe_groups(GroupedShape s, const int* counts, const Number* a, const Number* b, Number* y,
                                const Number* zeros, Groups g) {
  __shared__ int rows[most_experts];
  const int e = static_cast<int>(threadIdx.x);
  int own = 0;
  if (e < s.experts) {
    for (int source = 0; source < s.sources; ++source)
      own += counts != nullptr ? counts[source * s.experts + e] : static_cast<int>(s.segment);
    rows[e] = own;
  }
  __syncthreads();
  if (e >= s.experts) return;
  std::int64_t first = 0;
  for (int before = 0; before < e; ++before) first += rows[before];
  const std::int64_t matrix = e * s.n * s.k;
  if (s.form == 2) {
    int place = 0;
    for (int other = 0; other < s.experts; ++other)
      place += rows[other] > own || (rows[other] == own && other < e) ? 1 : 0;
    g.a[place] = own > 0 ? a + first * s.n : zeros;
    g.b[place] = own > 0 ? b + first * s.k : zeros;
    g.y[place] = y + matrix;
    g.problems[place] =
        cute::make_shape(static_cast<int>(s.n), static_cast<int>(s.k), own > 0 ? own : +rows_of_nothing);
    g.stride_a[place] = s.n;
    g.stride_b[place] = s.k;
    g.stride_y[place] = s.k;
  } else {
    g.a[e] = a + first * s.k;
    g.b[e] = b + matrix;
    g.y[e] = y + first * s.n;
    g.problems[e] = cute::make_shape(own, static_cast<int>(s.n), static_cast<int>(s.k));
    g.stride_a[e] = s.k;
    g.stride_b[e] = s.form == 0 ? s.k : s.n;
    g.stride_y[e] = s.n;
  }
}

void check(cutlass::Status status, const GroupedShape& s) {
  if (status != cutlass::Status::kSuccess)
    throw MachineError(fmt::format("CUTLASS: grouped product, form {}, {} x {}: {}", s.form, s.n, s.k,
                                   cutlassGetStatusString(status)));
}

}  // namespace

struct Grouped::Impl {
  Scratch groups, zeros, workspace;
  std::size_t zeroed = 0;
  int processors = 0;

  Groups groups_of(int experts) {
    const auto n = static_cast<std::size_t>(experts + experts % 2);  // every array begins at 16 bytes
    auto* at = static_cast<std::byte*>(groups.of(n * (6 * 8 + sizeof(Problem))));
    const auto take = [&](std::size_t each) {
      std::byte* here = at;
      at += n * each;
      return static_cast<void*>(here);
    };
    return {static_cast<const Number**>(take(8)),
            static_cast<const Number**>(take(8)),
            static_cast<Number**>(take(8)),
            static_cast<std::int64_t*>(take(8)),
            static_cast<std::int64_t*>(take(8)),
            static_cast<std::int64_t*>(take(8)),
            static_cast<Problem*>(take(sizeof(Problem)))};
  }

  const Number* no_rows(const GroupedShape& s, cudaStream_t stream) {
    const std::size_t bytes = rows_of_nothing * static_cast<std::size_t>(s.n > s.k ? s.n : s.k) * sizeof(Number);
    void* memory = zeros.of(bytes);
    if (bytes > zeroed) {
      cuda::check(cudaMemsetAsync(memory, 0, bytes, stream), "zeros");
      zeroed = bytes;
    }
    return static_cast<const Number*>(memory);
  }

  template <class K>
  void multiply(const GroupedShape& s, const Groups& g, cudaStream_t stream) {
    using Gemm = typename K::Gemm;
    typename Gemm::Arguments arguments{cutlass::gemm::GemmUniversalMode::kGrouped,
                                       {s.experts, g.problems, nullptr},
                                       {g.a, reinterpret_cast<typename K::StrideA*>(g.stride_a), g.b,
                                        reinterpret_cast<typename K::StrideB*>(g.stride_b)},
                                       {{},
                                        const_cast<const Number**>(g.y),
                                        reinterpret_cast<typename K::StrideD*>(g.stride_y),
                                        g.y,
                                        reinterpret_cast<typename K::StrideD*>(g.stride_y)}};
    arguments.epilogue.thread.alpha = 1;
    arguments.epilogue.thread.beta = s.add ? 1.0F : 0.0F;
    arguments.epilogue.thread.dAlpha = {cute::_0{}, cute::_0{}, 0};
    arguments.epilogue.thread.dBeta = {cute::_0{}, cute::_0{}, 0};
    arguments.hw_info.sm_count = processors * blocks_a_processor;
    Gemm gemm;
    check(gemm.can_implement(arguments), s);
    check(gemm.initialize(arguments, workspace.of(Gemm::get_workspace_size(arguments) + 1), stream), s);
    check(gemm.run(stream), s);
  }
};

Grouped::Grouped() : impl_(std::make_unique<Impl>()) {
  int device = 0;
  cuda::check(cudaGetDevice(&device), "which device");
  cuda::check(cudaDeviceGetAttribute(&impl_->processors, cudaDevAttrMultiProcessorCount, device), "multiprocessors");
}
Grouped::~Grouped() = default;

void Grouped::run(const GroupedShape& s, const int* counts, const Half* a, const Half* b, Half* y,
                  cudaStream_t stream) {
  if (s.n % aligned != 0 || s.k % aligned != 0 || s.experts > most_experts)
    throw MachineError(
        fmt::format("grouped products of {} experts, {} x {}: sizes are multiples of {}, experts at most {}", s.experts,
                    s.n, s.k, aligned, most_experts));
  const Groups groups = impl_->groups_of(s.experts);
  describe_groups<<<1, most_experts, 0, stream>>>(s, counts, reinterpret_cast<const Number*>(a),
                                                  reinterpret_cast<const Number*>(b), reinterpret_cast<Number*>(y),
                                                  impl_->no_rows(s, stream), groups);
  if (s.form == 0) return impl_->multiply<Forward>(s, groups, stream);
  if (s.form == 1) return impl_->multiply<Backward>(s, groups, stream);
  impl_->multiply<Weights>(s, groups, stream);
}

}  // namespace plimsoll::cuda
