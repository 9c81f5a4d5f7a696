// Graphs of cuDNN's front end, one a shape and direction (runtime/cuda/attention.hpp).
#include "runtime/cuda/attention.hpp"

#include <cudnn_frontend.h>

#include <cmath>
#include <map>
#include <unordered_map>

#include "runtime/cuda/check_cuda.hpp"

namespace plimsoll::cuda {

namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

void check_graph(fe::error_t status) {
  if (status.is_bad()) throw MachineError(fmt::format("cuDNN attention: {}", status.get_message()));
}

/// A graph, its tensors in the order of its arguments, and the workspace that it asks for.
struct Built {
  fe::graph::Graph graph;
  std::vector<Tensor> tensors;
  std::int64_t workspace = 0;
};

std::vector<std::int64_t> strides(const AttentionShape& s, std::int64_t row) { return {s.sequence * row, s.d, row, 1}; }

Tensor input(fe::graph::Graph& graph, const AttentionShape& s, std::int64_t heads, std::int64_t row) {
  return graph.tensor(
      fe::graph::Tensor_attributes().set_dim({s.batch, heads, s.sequence, s.d}).set_stride(strides(s, row)));
}

void output(const Tensor& tensor, const AttentionShape& s, std::int64_t heads, std::int64_t row) {
  tensor->set_output(true).set_dim({s.batch, heads, s.sequence, s.d}).set_stride(strides(s, row));
}

void build(Built& built, cudnnHandle_t handle) {
  check_graph(built.graph.validate());
  check_graph(built.graph.build_operation_graph(handle));
  check_graph(built.graph.create_execution_plans({fe::HeurMode_t::A}));
  check_graph(built.graph.check_support());
  check_graph(built.graph.build_plans());
  check_graph(built.graph.get_workspace_size(built.workspace));
}

void describe(fe::graph::Graph& graph) {
  graph.set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
}

std::unique_ptr<Built> build_forward(const AttentionShape& s, cudnnHandle_t handle) {
  auto built = std::make_unique<Built>();
  fe::graph::Graph& graph = built->graph;
  describe(graph);
  const std::int64_t row = (s.q + 2 * s.kv) * s.d;
  const Tensor q = input(graph, s, s.q, row), k = input(graph, s, s.kv, row), v = input(graph, s, s.kv, row);
  auto attributes = fe::graph::SDPA_attributes().set_generate_stats(true).set_causal_mask(true).set_attn_scale(
      static_cast<float>(1 / std::sqrt(static_cast<double>(s.d))));
  const auto [out, stats] = graph.sdpa(q, k, v, attributes);
  output(out, s, s.q, s.q * s.d);
  stats->set_output(true).set_data_type(fe::DataType_t::FLOAT);
  built->tensors = {q, k, v, out, stats};
  build(*built, handle);
  return built;
}

std::unique_ptr<Built> build_backward(const AttentionShape& s, cudnnHandle_t handle) {
  auto built = std::make_unique<Built>();
  fe::graph::Graph& graph = built->graph;
  describe(graph);
  const std::int64_t row = (s.q + 2 * s.kv) * s.d;
  const Tensor q = input(graph, s, s.q, row), k = input(graph, s, s.kv, row), v = input(graph, s, s.kv, row);
  const Tensor out = input(graph, s, s.q, s.q * s.d), d_out = input(graph, s, s.q, s.q * s.d);
  const Tensor stats = graph.tensor(fe::graph::Tensor_attributes()
                                        .set_dim({s.batch, s.q, s.sequence, 1})
                                        .set_stride({s.q * s.sequence, s.sequence, 1, 1})
                                        .set_data_type(fe::DataType_t::FLOAT));
  auto attributes = fe::graph::SDPA_backward_attributes().set_causal_mask(true).set_attn_scale(
      static_cast<float>(1 / std::sqrt(static_cast<double>(s.d))));
  const auto [d_q, d_k, d_v] = graph.sdpa_backward(q, k, v, out, d_out, stats, attributes);
  output(d_q, s, s.q, row);
  output(d_k, s, s.kv, row);
  output(d_v, s, s.kv, row);
  built->tensors = {q, k, v, out, d_out, stats, d_q, d_k, d_v};
  build(*built, handle);
  return built;
}

}  // namespace

struct Attention::Impl {
  cudnnHandle_t handle = nullptr;
  std::map<AttentionShape, std::unique_ptr<Built>> forward, backward;
  Scratch workspace;

  void run(Built& built, const std::vector<void*>& data, cudaStream_t stream) {
    std::unordered_map<Tensor, void*> pack;
    for (std::size_t i = 0; i < data.size(); ++i) pack.emplace(built.tensors[i], data[i]);
    cudnnSetStream(handle, stream);
    check_graph(built.graph.execute(handle, pack, workspace.of(static_cast<std::size_t>(built.workspace) + 256)));
  }
};

Attention::Attention() : impl_(std::make_unique<Impl>()) {
  if (cudnnCreate(&impl_->handle) != CUDNN_STATUS_SUCCESS) throw MachineError("cuDNN cannot be initialised");
}
Attention::~Attention() { cudnnDestroy(impl_->handle); }

void Attention::forward(const AttentionShape& s, Half* qkv, Half* out, float* lse, cudaStream_t stream) {
  std::unique_ptr<Built>& built = impl_->forward[s];
  if (!built) built = build_forward(s, impl_->handle);
  impl_->run(*built, {qkv, qkv + s.q * s.d, qkv + (s.q + s.kv) * s.d, out, lse}, stream);
}

void Attention::backward(const AttentionShape& s, Half* d_out, Half* qkv, float* lse, Half* out, Half* d_qkv,
                         cudaStream_t stream) {
  std::unique_ptr<Built>& built = impl_->backward[s];
  if (!built) built = build_backward(s, impl_->handle);
  const std::int64_t k = s.q * s.d, v = (s.q + s.kv) * s.d;
  impl_->run(*built, {qkv, qkv + k, qkv + v, out, d_out, lse, d_qkv, d_qkv + k, d_qkv + v}, stream);
}

}  // namespace plimsoll::cuda
