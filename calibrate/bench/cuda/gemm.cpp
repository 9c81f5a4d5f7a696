// Products through cuBLAS (calibrate/bench/cuda/points.hpp).
//
// cuBLAS is column-major, the tensors are row-major: it computes C^T = B^T A^T.  For C[m,n] = A[m,k] B[k,n]:
//   forward          B is a weight [n,k] read transposed      C^T = op(W)^T ...   W column-major k x n, transposed
//   input_gradient   B is a weight [k,n] as it lies                               W column-major n x k
//   weight_gradient  A is the output's gradient [k,m] read transposed
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cudnn_version.h>
#include <fmt/format.h>

#include "calibrate/bench/cuda/points.hpp"
#include "planner/base/machine_error.hpp"

namespace plimsoll::calibrate::cuda {
namespace {

constexpr std::size_t workspace_bytes = std::size_t{32} << 20;

void check_blas(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const std::string text = fmt::format("{}: {}", what, cublasGetStatusString(status));
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ALLOC_FAILED) throw Unsupported(text);
  throw MachineError(text);
}

struct Product {
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  Buffer left, right, result, workspace{workspace_bytes};

  Product() { check_blas(cublasLtCreate(&handle), "cublasLtCreate"); }
  ~Product() {
    if (a) cublasLtMatrixLayoutDestroy(a);
    if (b) cublasLtMatrixLayoutDestroy(b);
    if (c) cublasLtMatrixLayoutDestroy(c);
    if (operation) cublasLtMatmulDescDestroy(operation);
    cublasLtDestroy(handle);
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  void choose() {
    cublasLtMatmulPreference_t preference = nullptr;
    check_blas(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                         sizeof workspace_bytes);
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    const auto status = cublasLtMatmulAlgoGetHeuristic(handle, operation, a, b, c, c, preference, 1, &found, &count);
    cublasLtMatmulPreferenceDestroy(preference);
    check_blas(status, "cublasLtMatmulAlgoGetHeuristic");
    if (count == 0) throw Unsupported("cuBLASLt has no algorithm for this product");
    algorithm = found.algo;
  }

  void run(cudaStream_t stream) const {
    const float one = 1, zero = 0;
    check_blas(cublasLtMatmul(handle, operation, &one, left.get(), a, right.get(), b, &zero, result.get(), c,
                              result.get(), c, &algorithm, workspace.get(), workspace_bytes, stream),
               "cublasLtMatmul");
  }
};

std::uint64_t u(std::int64_t value) { return static_cast<std::uint64_t>(value); }

}  // namespace

Prepared prepare_gemm(const Point& point) {
  const std::int64_t m = point.size("m"), n = point.size("n"), k = point.size("k");
  if (m < 1 || n < 1 || k < 1) throw Unsupported("an empty product");
  const bool fp32 = point.label("dtype") == "fp32";
  const std::string layout = point.label("layout");
  const cudaDataType_t type = fp32 ? CUDA_R_32F : CUDA_R_16BF;
  const auto product = std::make_shared<Product>();
  check_blas(cublasLtMatmulDescCreate(&product->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
  const bool transpose_left = layout == "forward";           // the weight
  const bool transpose_right = layout == "weight_gradient";  // the output's gradient
  const cublasOperation_t left = transpose_left ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t right = transpose_right ? CUBLAS_OP_T : CUBLAS_OP_N;
  cublasLtMatmulDescSetAttribute(product->operation, CUBLASLT_MATMUL_DESC_TRANSA, &left, sizeof left);
  cublasLtMatmulDescSetAttribute(product->operation, CUBLASLT_MATMUL_DESC_TRANSB, &right, sizeof right);
  check_blas(transpose_left ? cublasLtMatrixLayoutCreate(&product->a, type, u(k), u(n), k)
                            : cublasLtMatrixLayoutCreate(&product->a, type, u(n), u(k), n),
             "cublasLtMatrixLayoutCreate");
  check_blas(transpose_right ? cublasLtMatrixLayoutCreate(&product->b, type, u(m), u(k), m)
                             : cublasLtMatrixLayoutCreate(&product->b, type, u(k), u(m), k),
             "cublasLtMatrixLayoutCreate");
  check_blas(cublasLtMatrixLayoutCreate(&product->c, type, u(n), u(m), n), "cublasLtMatrixLayoutCreate");
  const cudaStream_t stream = main_stream().get();
  product->left = fp32 ? random_fp32(n * k, 1, stream) : random_bf16(n * k, 1, stream);
  product->right = fp32 ? random_fp32(m * k, 2, stream) : random_bf16(m * k, 2, stream);
  product->result = Buffer(u(m * n) * (fp32 ? 4 : 2));
  product->choose();
  return {[product](cudaStream_t on) { product->run(on); },
          static_cast<double>((m * k + k * n + m * n) * (fp32 ? 4 : 2))};
}

namespace {

/// Pointers to equal groups within one buffer, on the device.
Buffer pointers(const Buffer& buffer, std::int64_t groups) {
  std::vector<void*> list;
  for (std::int64_t g = 0; g < groups; ++g) list.push_back(buffer.as<char>() + u(g) * (buffer.bytes() / u(groups)));
  Buffer result(list.size() * sizeof(void*));
  check(cudaMemcpy(result.get(), list.data(), result.bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
  return result;
}

struct Grouped {
  cublasHandle_t handle = nullptr;
  Buffer left, right, result, lefts, rights, results, workspace{workspace_bytes};
  std::vector<int> m, n, k, lda, ldb, ldc, size;
  std::vector<cublasOperation_t> transpose, plain;
  std::vector<float> one, zero;
  Grouped() { check_blas(cublasCreate(&handle), "cublasCreate"); }
  ~Grouped() { cublasDestroy(handle); }
  Grouped(const Grouped&) = delete;
  Grouped& operator=(const Grouped&) = delete;
};

}  // namespace

Prepared prepare_grouped_gemm(const Point& point) {
  const std::int64_t groups = point.size("groups"), rows = point.size("m") / std::max<std::int64_t>(1, groups);
  const std::int64_t n = point.size("n"), k = point.size("k");
  if (groups < 1 || rows < 1 || n < 1 || k < 1) throw Unsupported("an empty product");
  const auto all = std::make_shared<Grouped>();
  const cudaStream_t stream = main_stream().get();
  check_blas(cublasSetStream(all->handle, stream), "cublasSetStream");
  check_blas(cublasSetWorkspace(all->handle, all->workspace.get(), workspace_bytes), "cublasSetWorkspace");
  all->left = random_bf16(groups * n * k, 1, stream);
  all->right = random_bf16(groups * rows * k, 2, stream);
  all->result = Buffer(u(groups * rows * n) * 2);
  all->lefts = pointers(all->left, groups);
  all->rights = pointers(all->right, groups);
  all->results = pointers(all->result, groups);
  const auto count = static_cast<std::size_t>(groups);
  all->m.assign(count, static_cast<int>(n));
  all->n.assign(count, static_cast<int>(rows));
  all->k.assign(count, static_cast<int>(k));
  all->lda.assign(count, static_cast<int>(k));
  all->ldb.assign(count, static_cast<int>(k));
  all->ldc.assign(count, static_cast<int>(n));
  all->size.assign(count, 1);
  all->transpose.assign(count, CUBLAS_OP_T);
  all->plain.assign(count, CUBLAS_OP_N);
  all->one.assign(count, 1);
  all->zero.assign(count, 0);
  const Launch launch = [all, groups](cudaStream_t on) {
    check_blas(cublasSetStream(all->handle, on), "cublasSetStream");
    check_blas(
        cublasGemmGroupedBatchedEx(all->handle, all->transpose.data(), all->plain.data(), all->m.data(), all->n.data(),
                                   all->k.data(), all->one.data(), all->lefts.as<const void*>(), CUDA_R_16BF,
                                   all->lda.data(), all->rights.as<const void*>(), CUDA_R_16BF, all->ldb.data(),
                                   all->zero.data(), all->results.as<void*>(), CUDA_R_16BF, all->ldc.data(),
                                   static_cast<int>(groups), all->size.data(), CUBLAS_COMPUTE_32F),
        "cublasGemmGroupedBatchedEx");
  };
  return {launch, static_cast<double>(2 * groups * (rows * k + k * n + rows * n))};
}

std::string library_versions() {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  const auto version = [](int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); };
  return fmt::format("CUDA {} (driver {}), cuBLASLt {}, cuDNN headers {}.{}.{}", version(runtime), version(driver),
                     cublasLtGetVersion(), CUDNN_MAJOR, CUDNN_MINOR, CUDNN_PATCHLEVEL);
}

}  // namespace plimsoll::calibrate::cuda
