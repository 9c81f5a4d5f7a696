// Linear layers, norms and the gated MLP as Hugging Face's modules compose them (planner/step/layers/layers.hpp).
#include "planner/step/autograd/ops.hpp"
#include "planner/step/autograd/ops_routing.hpp"
#include "planner/step/layers/compiled.hpp"
#include "planner/step/layers/layers.hpp"

namespace plimsoll {

namespace {

// y = W x + s B A x, as PEFT's lora.Linear computes it: x in the adapter's type, the sum in the wider one, then cast back.
Variable adapted_linear(LayerContext& c, LinearModule& module, const Variable& input, const char* output_name) {
  AdapterModules& adapter = *module.adapter;
  Variable result = linear(c, adapter.base, input, output_name);
  const DType dtype = result.dtype;
  const Variable x = ops::cast(c.g, input, adapter.a.weight->dtype, "adapter input");
  Variable sum;
  {
    Variable scaled;
    {
      Variable high;
      {
        const Variable kept = call_module(c, adapter.dropout, x, [&c](const Variable& in) {
          return c.scenario.plan.lora->dropout > 0 ? ops::dropout(c.g, in, "adapter input after dropout") : in;
        });
        const Variable low = linear(c, adapter.a, kept, "adapter's low rank");
        high = linear(c, adapter.b, low, "adapter output");
      }
      scaled = ops::scale(c.g, high, "scaled adapter output");
    }
    sum = ops::add(c.g, result, scaled, "output and adapter's");
  }
  result = std::move(sum);
  return ops::cast(c.g, result, dtype, output_name);
}

}  // namespace

Variable linear(LayerContext& c, LinearModule& module, const Variable& x, const char* output_name) {
  if (module.adapter) {
    return call_module(c, module, x,
                       [&](const Variable& input) { return adapted_linear(c, module, input, output_name); });
  }
  return call_module(c, module, x, [&](const Variable& input) {
    if (c.pieces) return linear_piece(c, module, input, output_name);
    return ops::linear(c.g, input, *module.weight, module.bias,
                       {c.zero3_linear, c.flat_tokens, output_name, module.name});
  });
}

namespace {

// x / sqrt(mean(x^2) + eps) * weight, in fp32 but for the last product.
Variable rms_norm(LayerContext& c, NormModule& module, const Variable& x) {
  Variable variance;  // Python clears the hidden states first
  Variable h = ops::cast(c.g, x, DType::fp32, "norm input in fp32");
  {
    const Variable squared = ops::square(c.g, h, "norm square");
    variance = ops::mean_last(c.g, squared, "norm variance");
  }
  Variable inverse;
  {
    const Variable shifted = ops::add_constant(c.g, variance, "norm variance + eps");
    inverse = ops::rsqrt(c.g, shifted, "norm rstd");
  }
  h = ops::mul(c.g, h, std::exchange(inverse, {}), "normalised in fp32", KernelKind::broadcast_row);
  if (c.scenario.model.family == "gpt_oss") {  // the weight is applied in fp32, then the product is cast
    const Variable product =
        ops::mul(c.g, c.g.leaf(*module.weight), h, "norm output in fp32", KernelKind::broadcast_weight);
    return ops::cast(c.g, product, x.dtype, "norm output");
  }
  const Variable narrow = ops::cast(c.g, h, x.dtype, "normalised");
  return ops::mul(c.g, c.g.leaf(*module.weight), narrow, "norm output", KernelKind::broadcast_weight);
}

// native_layer_norm: keeps its input, mean and rstd; one kernel each way, and one for the weight's and bias's gradients.
Variable layer_norm(LayerContext& c, NormModule& module, const Variable& x) {
  const Variable weight = c.g.leaf(*module.weight);
  const Variable bias = c.g.leaf(*module.bias);
  NodeRef node = c.g.make_node({&x, &weight, &bias}, [](BackwardCall& call) {
    const Tensor input = call.saved(0), scale = call.saved(1), mean = call.saved(2), rstd = call.saved(3);
    Tensor dx = call.trace.empty(input.shape, input.dtype, "gradient of a layer norm");
    Tensor dw = call.trace.empty(scale.shape, scale.dtype, "weight gradient", Category::gradients);
    Tensor db = call.trace.empty(scale.shape, scale.dtype, "weight gradient", Category::gradients);
    call.trace.compute(
        Kernel::pointwise(KernelKind::fused_norm_backward, input.dtype, input.numel(), input.bytes() * 3),
        {&call.grads[0], &input, &scale, &mean, &rstd}, {&dx, &dw, &db}, "layer norm backward");
    call.out = {std::move(dx), std::move(dw), std::move(db), {}};
  });
  c.g.save(node, x);
  c.g.save(node, weight);
  Shape rows;
  for (int i = 0; i + 1 < x.shape.rank; ++i) rows.push(x.shape.dim(i));
  Tensor result = c.trace.empty(x.shape, x.dtype, "norm output");
  const Tensor mean = c.trace.empty(rows, DType::fp32, "norm mean");
  const Tensor rstd = c.trace.empty(rows, DType::fp32, "norm rstd");
  c.trace.compute(Kernel::pointwise(KernelKind::fused_norm, x.dtype, x.numel(), x.bytes() * 2), {&x, &weight, &bias},
                  {&result, &mean, &rstd}, "layer norm");
  c.g.save(node, mean);
  c.g.save(node, rstd);
  Variable output{std::move(result)};
  output.grad_fn = std::move(node);
  return output;
}

}  // namespace

Variable norm(LayerContext& c, NormModule& module, const Variable& x) {
  return call_module(c, module, x, [&](const Variable& input) {
    if (c.pieces) return norm_piece(c, module, input);
    return module.bias ? layer_norm(c, module, input) : rms_norm(c, module, input);
  });
}

Variable mlp(LayerContext& c, MlpModule& module, const Variable& input, Dim) {
  return call_module(c, module, input, [&](const Variable& x) {
    Variable product;
    {
      Variable activated;
      {
        const Variable gate = linear(c, module.gate, x, "mlp gate");
        activated = call_module(c, module.activation, gate,
                                [&](const Variable& in) { return ops::silu(c.g, in, "silu(gate)"); });
      }
      const Variable up = linear(c, module.up, x, "mlp up");
      product = ops::mul(c.g, activated, up, "silu(gate) up", KernelKind::vectorized);
    }
    return linear(c, module.down, product, "mlp output");
  });
}

}  // namespace plimsoll
