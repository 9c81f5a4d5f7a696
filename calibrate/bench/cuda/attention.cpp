// Causal attention through cuDNN's front end (calibrate/bench/cuda/points.hpp).  Q [1, A, s, d], K and V [1, K, s, d], in the
// layout that PyTorch's projections leave: strides of [s, A, d].  `batch` of a point counts sequences times heads; one
// sequence with that many heads is the same work.
#include <cudnn_frontend.h>
#include <fmt/format.h>

#include <cmath>
#include <unordered_map>

#include "calibrate/bench/cuda/points.hpp"
#include "planner/base/machine_error.hpp"

namespace plimsoll::calibrate::cuda {
namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

void check_graph(fe::error_t status, const char* what) {
  if (status.is_bad()) throw Unsupported(fmt::format("{}: {}", what, status.get_message()));
}

/// One handle a process; creating it loads cuDNN.
cudnnHandle_t handle() {
  static cudnnHandle_t instance = nullptr;
  if (!instance) {
    const cudnnStatus_t status = cudnnCreate(&instance);
    if (status != CUDNN_STATUS_SUCCESS) throw Unsupported(fmt::format("cudnnCreate: {}", cudnnGetErrorString(status)));
  }
  return instance;
}

struct Attention {
  fe::graph::Graph forward, backward;
  std::unordered_map<Tensor, void*> forward_tensors, backward_tensors;
  Buffer q, k, v, o, stats, d_o, d_q, d_k, d_v, workspace;

  void run(fe::graph::Graph& graph, std::unordered_map<Tensor, void*>& tensors, cudaStream_t stream) {
    cudnnSetStream(handle(), stream);
    check_graph(graph.execute(handle(), tensors, workspace.get()), "executing the attention graph");
  }
};

void describe(fe::graph::Graph& graph) {
  graph.set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
}

Tensor tensor(fe::graph::Graph& graph, const char* name, std::int64_t heads, std::int64_t s, std::int64_t d) {
  return graph.tensor(fe::graph::Tensor_attributes()
                          .set_name(name)
                          .set_dim({1, heads, s, d})
                          .set_stride({s * heads * d, d, heads * d, 1}));
}

void output(const Tensor& tensor, std::int64_t heads, std::int64_t s, std::int64_t d) {
  tensor->set_output(true).set_dim({1, heads, s, d}).set_stride({s * heads * d, d, heads * d, 1});
}

/// Builds the graph's plan and grows the workspace to what it needs.
void build(Attention& all, fe::graph::Graph& graph) {
  check_graph(graph.validate(), "attention");
  check_graph(graph.build_operation_graph(handle()), "attention");
  check_graph(graph.create_execution_plans({fe::HeurMode_t::A}), "attention");
  check_graph(graph.check_support(), "attention");
  check_graph(graph.build_plans(), "attention");
  std::int64_t bytes = 0;
  check_graph(graph.get_workspace_size(bytes), "attention");
  if (static_cast<std::size_t>(bytes) > all.workspace.bytes()) all.workspace = Buffer(static_cast<std::size_t>(bytes));
}

}  // namespace

Prepared prepare_attention(const Point& point) {
  const std::int64_t heads = point.size("batch"), s = point.size("length"), d = point.size("head_dim");
  const std::int64_t kv = std::max<std::int64_t>(1, point.size("kv_batch"));
  if (heads < 1 || s < 1 || d < 1) throw Unsupported("an empty attention");
  const cudaStream_t stream = main_stream().get();
  const auto all = std::make_shared<Attention>();
  const auto bytes = [](std::int64_t elements) { return static_cast<std::size_t>(elements) * 2; };
  all->q = random_bf16(heads * s * d, 1, stream);
  all->k = random_bf16(kv * s * d, 2, stream);
  all->v = random_bf16(kv * s * d, 3, stream);
  all->o = Buffer(bytes(heads * s * d));
  all->stats = Buffer(static_cast<std::size_t>(heads * s) * 4);
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(d)));
  {
    describe(all->forward);
    const Tensor q = tensor(all->forward, "q", heads, s, d);
    const Tensor k = tensor(all->forward, "k", kv, s, d);
    const Tensor v = tensor(all->forward, "v", kv, s, d);
    auto attributes = fe::graph::SDPA_attributes()
                          .set_name("attention")
                          .set_generate_stats(true)
                          .set_causal_mask(true)
                          .set_attn_scale(scale);
    const auto [o, stats] = all->forward.sdpa(q, k, v, attributes);
    output(o, heads, s, d);
    stats->set_output(true).set_data_type(fe::DataType_t::FLOAT);
    build(*all, all->forward);
    all->forward_tensors = {
        {q, all->q.get()}, {k, all->k.get()}, {v, all->v.get()}, {o, all->o.get()}, {stats, all->stats.get()}};
  }
  const double moved = 2.0 * static_cast<double>((2 * heads + 2 * kv) * s * d);
  if (point.label("direction") == "forward")
    return {[all](cudaStream_t on) { all->run(all->forward, all->forward_tensors, on); }, moved};
  all->d_o = random_bf16(heads * s * d, 4, stream);
  all->d_q = Buffer(bytes(heads * s * d));
  all->d_k = Buffer(bytes(kv * s * d));
  all->d_v = Buffer(bytes(kv * s * d));
  all->run(all->forward, all->forward_tensors, stream);  // real output and row statistics
  describe(all->backward);
  const Tensor q = tensor(all->backward, "q", heads, s, d);
  const Tensor k = tensor(all->backward, "k", kv, s, d);
  const Tensor v = tensor(all->backward, "v", kv, s, d);
  const Tensor o = tensor(all->backward, "o", heads, s, d);
  const Tensor d_o = tensor(all->backward, "d_o", heads, s, d);
  const Tensor stats = all->backward.tensor(fe::graph::Tensor_attributes()
                                                .set_name("stats")
                                                .set_dim({1, heads, s, 1})
                                                .set_stride({heads * s, s, 1, 1})
                                                .set_data_type(fe::DataType_t::FLOAT));
  auto attributes =
      fe::graph::SDPA_backward_attributes().set_name("attention_backward").set_causal_mask(true).set_attn_scale(scale);
  const auto [d_q, d_k, d_v] = all->backward.sdpa_backward(q, k, v, o, d_o, stats, attributes);
  output(d_q, heads, s, d);
  output(d_k, kv, s, d);
  output(d_v, kv, s, d);
  build(*all, all->backward);
  all->backward_tensors = {{q, all->q.get()},     {k, all->k.get()},     {v, all->v.get()},
                           {o, all->o.get()},     {d_o, all->d_o.get()}, {stats, all->stats.get()},
                           {d_q, all->d_q.get()}, {d_k, all->d_k.get()}, {d_v, all->d_v.get()}};
  return {[all](cudaStream_t on) { all->run(all->backward, all->backward_tensors, on); }, 2 * moved};
}

}  // namespace plimsoll::calibrate::cuda
