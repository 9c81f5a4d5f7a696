// cuBLASLt (runtime/cuda/products.hpp).  A row-major matrix is a column-major one transposed, so that
// y = A B is asked for as y^T = B^T A^T.
#include "runtime/cuda/products.hpp"

#include <cublasLt.h>

#include <map>
#include <vector>

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

}  // namespace

struct Products::Impl {
  cublasLtHandle_t lt = nullptr;
  Scratch workspace;
  std::map<ProductShape, Prepared> prepared;

  cublasStatus_t multiply(const Prepared& p, const cublasLtMatmulAlgo_t& algorithm, const Half* a, const Half* b,
                          Half* y, bool add, cudaStream_t stream) {
    const float one = 1, keep = add ? 1 : 0;
    return cublasLtMatmul(lt, p.operation, &one, b, p.left, a, p.right, &keep, y, p.result, y, p.result, &algorithm,
                          workspace.of(workspace_bytes), workspace_bytes, stream);
  }

  Prepared prepare(const ProductShape& s, const Half* a, const Half* b, Half* y, cudaStream_t stream) {
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
    Scratch trial;  // what is added to may not be written before its time
    auto* result = s.add ? static_cast<Half*>(trial.of(static_cast<std::size_t>(s.m * s.n) * sizeof(Half))) : y;
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
};

Products::Products() : impl_(std::make_unique<Impl>()) { check(cublasLtCreate(&impl_->lt), "creating a handle"); }

Products::~Products() { cublasLtDestroy(impl_->lt); }

void Products::run(const ProductShape& shape, const Half* a, const Half* b, Half* y, cudaStream_t stream) {
  auto found = impl_->prepared.find(shape);
  if (found == impl_->prepared.end())
    found = impl_->prepared.emplace(shape, impl_->prepare(shape, a, b, y, stream)).first;
  check(impl_->multiply(found->second, found->second.algorithm, a, b, y, shape.add, stream), "product");
}

}  // namespace plimsoll::cuda
