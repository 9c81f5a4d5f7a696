// cuBLASLt and grouped cuBLAS (runtime/cuda/products.hpp).  A row-major matrix is a column-major one transposed, so that
// y = A B is asked for as y^T = B^T A^T.
#include "runtime/cuda/products.hpp"

#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "runtime/cuda/check_cuda.hpp"

namespace plimsoll::cuda {

namespace {

constexpr std::size_t workspace_bytes = std::size_t{32} << 20;
constexpr int candidates = 8, timed_runs = 3;

/// What cuBLASLt needs to know of one shape.
struct Prepared {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t left = nullptr, right = nullptr, result = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

cublasLtMatrixLayout_t layout(std::int64_t rows, std::int64_t columns) {
  cublasLtMatrixLayout_t made = nullptr;
  check(cublasLtMatrixLayoutCreate(&made, CUDA_R_16BF, static_cast<std::uint64_t>(rows),
                                   static_cast<std::uint64_t>(columns), rows),
        "layout");
  return made;
}

/// Pointers and sizes of one grouped call.
struct Grouped {
  std::vector<const void*> left, right;
  std::vector<void*> result;
  std::vector<int> m, n, k, left_stride, right_stride, result_stride;
};

}  // namespace

struct Products::Impl {
  cublasLtHandle_t lt = nullptr;
  cublasHandle_t blas = nullptr;
  Scratch workspace, grouped_workspace, trial, pointers;
  std::map<ProductShape, Prepared> prepared;
  std::byte* pinned = nullptr;
  std::size_t next = 0;
  static constexpr std::size_t ring = std::size_t{16} << 20;

  cublasStatus_t multiply(const Prepared& p, const cublasLtMatmulAlgo_t& algorithm, const Half* a, const Half* b,
                          Half* y, bool add, cudaStream_t stream) {
    const float one = 1, keep = add ? 1 : 0;
    return cublasLtMatmul(lt, p.operation, &one, b, p.left, a, p.right, &keep, y, p.result, y, p.result, &algorithm,
                          workspace.of(workspace_bytes), workspace_bytes, stream);
  }

  Prepared prepare(const ProductShape& s, const Half* a, const Half* b, cudaStream_t stream) {
    Prepared p;
    check(cublasLtMatmulDescCreate(&p.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "product");
    const cublasOperation_t left = s.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t right = s.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    check(cublasLtMatmulDescSetAttribute(p.operation, CUBLASLT_MATMUL_DESC_TRANSA, &left, sizeof left), "product");
    check(cublasLtMatmulDescSetAttribute(p.operation, CUBLASLT_MATMUL_DESC_TRANSB, &right, sizeof right), "product");
    p.left = s.b_transposed ? layout(s.k, s.n) : layout(s.n, s.k);
    p.right = s.a_transposed ? layout(s.m, s.k) : layout(s.k, s.m);
    p.result = layout(s.n, s.m);
    cublasLtMatmulPreference_t preference = nullptr;
    check(cublasLtMatmulPreferenceCreate(&preference), "preference");
    check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                               sizeof workspace_bytes),
          "preference");
    std::vector<cublasLtMatmulHeuristicResult_t> found(candidates);
    int count = 0;
    check(cublasLtMatmulAlgoGetHeuristic(lt, p.operation, p.left, p.right, p.result, p.result, preference, candidates,
                                         found.data(), &count),
          "choosing an algorithm");
    cublasLtMatmulPreferenceDestroy(preference);
    if (count == 0) throw MachineError(fmt::format("cuBLASLt has no algorithm for {} x {} x {}", s.m, s.n, s.k));
    p.algorithm = found.front().algo;
    float best = 0;
    auto* result = static_cast<Half*>(trial.of(static_cast<std::size_t>(s.m * s.n) * sizeof(Half)));
    cudaEvent_t start = nullptr, stop = nullptr;
    check(cudaEventCreate(&start), "event");
    check(cudaEventCreate(&stop), "event");
    for (int i = 0; i < count; ++i) {
      const cublasLtMatmulAlgo_t& algorithm = found[static_cast<std::size_t>(i)].algo;
      if (multiply(p, algorithm, a, b, result, false, stream) != CUBLAS_STATUS_SUCCESS) continue;
      cudaEventRecord(start, stream);
      for (int run = 0; run < timed_runs; ++run) multiply(p, algorithm, a, b, result, false, stream);
      cudaEventRecord(stop, stream);
      check(cudaEventSynchronize(stop), "timing a product");
      float time = 0;
      cudaEventElapsedTime(&time, start, stop);
      if (best == 0 || time < best) {
        best = time;
        p.algorithm = algorithm;
      }
    }
    cudaEventDestroy(start);
    cudaEventDestroy(stop);
    return p;
  }

  /// Copies of host arrays on the device, through pinned memory used round and round.
  template <class T>
  T* upload(const std::vector<T>& values, cudaStream_t stream) {
    const std::size_t bytes = values.size() * sizeof(T);
    if (next + bytes > ring) {
      check(cudaStreamSynchronize(stream), "reusing pinned memory");
      next = 0;
    }
    auto* device = static_cast<std::byte*>(pointers.of(ring)) + next;
    std::memcpy(pinned + next, values.data(), bytes);
    check(cudaMemcpyAsync(device, pinned + next, bytes, cudaMemcpyHostToDevice, stream), "pointers of experts");
    next += (bytes + 255) / 256 * 256;
    return reinterpret_cast<T*>(device);
  }
};

Products::Products() : impl_(std::make_unique<Impl>()) {
  check(cublasLtCreate(&impl_->lt), "creating a handle");
  check(cublasCreate(&impl_->blas), "creating a handle");
  check(cublasSetWorkspace(impl_->blas, impl_->grouped_workspace.of(workspace_bytes), workspace_bytes), "workspace");
  check(cudaMallocHost(reinterpret_cast<void**>(&impl_->pinned), Impl::ring), "pinned memory");
}

Products::~Products() {
  cublasLtDestroy(impl_->lt);
  cublasDestroy(impl_->blas);
  cudaFreeHost(impl_->pinned);
}

void Products::run(const ProductShape& shape, const Half* a, const Half* b, Half* y, cudaStream_t stream) {
  auto found = impl_->prepared.find(shape);
  if (found == impl_->prepared.end()) found = impl_->prepared.emplace(shape, impl_->prepare(shape, a, b, stream)).first;
  check(impl_->multiply(found->second, found->second.algorithm, a, b, y, shape.add, stream), "product");
}

void Products::run_grouped(int form, std::int64_t n, std::int64_t k, const std::vector<std::int64_t>& rows,
                           const Half* a, const Half* b, Half* y, bool add, cudaStream_t stream) {
  Grouped g;
  const auto push = [&](const Half* left, const Half* right, Half* result, std::int64_t m, std::int64_t columns,
                        std::int64_t inner, std::int64_t left_stride, std::int64_t right_stride) {
    g.left.push_back(left);
    g.right.push_back(right);
    g.result.push_back(result);
    g.m.push_back(static_cast<int>(m));
    g.n.push_back(static_cast<int>(columns));
    g.k.push_back(static_cast<int>(inner));
    g.left_stride.push_back(static_cast<int>(left_stride));
    g.right_stride.push_back(static_cast<int>(right_stride));
    g.result_stride.push_back(static_cast<int>(m));
  };
  std::int64_t first = 0;
  for (std::size_t e = 0; e < rows.size(); ++e) {
    const auto matrix = static_cast<std::int64_t>(e) * n * k;
    if (form == 2) {
      if (rows[e] > 0)
        push(b + first * k, a + first * n, y + matrix, k, n, rows[e], k, n);
      else if (!add)
        check(cudaMemsetAsync(y + matrix, 0, static_cast<std::size_t>(n * k) * sizeof(Half), stream), "no rows");
    } else if (rows[e] > 0) {
      push(b + matrix, a + first * k, y + first * n, n, rows[e], k, form == 0 ? k : n, k);
    }
    first += rows[e];
  }
  if (g.m.empty()) return;
  const auto groups = g.m.size();
  const std::vector<cublasOperation_t> left(groups, form == 0 ? CUBLAS_OP_T : CUBLAS_OP_N);
  const std::vector<cublasOperation_t> right(groups, form == 2 ? CUBLAS_OP_T : CUBLAS_OP_N);
  const std::vector<float> one(groups, 1.0F), keep(groups, add ? 1.0F : 0.0F);
  const std::vector<int> sizes(groups, 1);
  auto* lefts = impl_->upload(g.left, stream);
  auto* rights = impl_->upload(g.right, stream);
  auto* results = impl_->upload(g.result, stream);
  check(cublasSetStream(impl_->blas, stream), "stream");
  check(cublasGemmGroupedBatchedEx(impl_->blas, left.data(), right.data(), g.m.data(), g.n.data(), g.k.data(),
                                   one.data(), lefts, CUDA_R_16BF, g.left_stride.data(), rights, CUDA_R_16BF,
                                   g.right_stride.data(), keep.data(), results, CUDA_R_16BF, g.result_stride.data(),
                                   static_cast<int>(groups), sizes.data(), CUBLAS_COMPUTE_32F),
        "grouped product");
}

}  // namespace plimsoll::cuda
