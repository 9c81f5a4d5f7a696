// Rotary position embedding in the forms of Hugging Face's families (planner/step/layers/attention.hpp).
// Source: the families' apply_rotary functions of transformers 5.17, and allocator traces of each form.
#include <string_view>

#include "planner/step/autograd/ops_routing.hpp"
#include "planner/step/autograd/ops_shape.hpp"
#include "planner/step/layers/attention.hpp"

namespace plimsoll {

RotaryForm rotary_form(const Scenario& scenario) {
  const std::string_view family = scenario.model.family;
  if (family == "glm4_moe" || family == "minimax_m2") return RotaryForm::partial;
  if (family == "gpt_oss") return RotaryForm::chunks;
  if (family == "deepseek_v2" || family == "llama4_text") return RotaryForm::complex;
  if (!scenario.model.layers.empty() && scenario.model.layers.front().attention.kind == AttentionSpec::Kind::latent) {
    return RotaryForm::pairs;
  }
  return RotaryForm::halves;
}

namespace {

/// Width of the rotary part of a head.
std::int64_t rotary_width(const Scenario& scenario) {
  if (scenario.model.layers.empty()) return 0;
  const AttentionSpec& spec = scenario.model.layers.front().attention;
  if (spec.rope_head_dim > 0) return spec.rope_head_dim;
  return spec.rotary_dim > 0 ? spec.rotary_dim : spec.head_dim;
}

class TableMaker {
 public:
  TableMaker(LayerContext& c, std::int64_t width, DType dtype)
      : c_(c),
        dtype_(dtype),
        s_{c.sequence(), Symbol::sequence},
        width_{width, Symbol::head_dim},
        half_{width / 2, Symbol::head_dim} {}

  // They die in the order in which they are made.
  RotaryTables real(bool half_tables) {
    Tensor sin, cos, angles, half, positions;
    positions = make({s_}, DType::fp32, "positions in fp32");
    half = make({s_, half_}, DType::fp32, "rotary angles");
    c_.g.take_gemm_workspace();  // frequencies times positions is the model's first matrix product
    if (!half_tables) angles = make({s_, width_}, DType::fp32, "rotary angles");
    const Dim width = half_tables ? half_ : width_;
    cos = scaled(width, "rotary cos");
    sin = scaled(width, "rotary sin");
    if (dtype_ == DType::fp32) return {cos, sin};
    return {make({s_, width}, dtype_, "rotary cos"), make({s_, width}, dtype_, "rotary sin")};
  }

  RotaryTables complex() {
    Tensor angles, positions;
    positions = make({s_}, DType::fp32, "positions in fp32");
    angles = make({s_, half_}, DType::fp32, "rotary angles");
    c_.g.take_gemm_workspace();
    Tensor unscaled;
    {
      const Tensor ones = make({s_, half_}, DType::fp32, "ones");
      unscaled = make({s_, width_}, DType::fp32, "complex rotations");
    }
    return {make({s_, width_}, DType::fp32, "complex rotations"), {}};
  }

 private:
  Tensor make(const Shape& shape, DType dtype, const char* name) {
    Tensor tensor = c_.trace.empty(shape, dtype, name);
    c_.trace.compute(Kernel::pointwise(KernelKind::small, dtype, tensor.numel(), tensor.bytes()), {}, {&tensor},
                     "rotary tables");
    return tensor;
  }
  /// Times the attention scaling of 1.
  Tensor scaled(Dim width, const char* name) {
    const Tensor raw = make({s_, width}, DType::fp32, name);
    return make({s_, width}, DType::fp32, name);
  }

  LayerContext& c_;
  DType dtype_;
  Dim s_, width_, half_;
};

// x -> (-second half, first half)
Variable rotate_half(Autograd& g, const Variable& x) {
  const Variable first = ops::slice_half(g, x);
  const Variable second = ops::slice_half(g, x);
  const Variable negated = ops::negate(g, second, "rotary negated half");
  return ops::concatenate(g, negated, first, "rotary rotated halves");
}

Shape with_width(const Variable& x, std::int64_t width) {
  Shape shape = x.shape;
  shape.sizes[static_cast<std::size_t>(shape.rank) - 1] = width;
  return shape;
}

/// (a cos - b sin, b cos + a sin), joined.
Variable turn(LayerContext& c, const Variable& a, const Variable& b, const RotaryTables& tables) {
  Autograd& g = c.g;
  const auto product = [&](const Variable& x, const Variable& table) {
    return ops::mul(g, x, table, "rotary product", KernelKind::strided_mul);
  };
  Variable second, first;
  {
    Variable right;
    const Variable left = product(a, tables.cos);
    right = product(b, tables.sin);
    first = ops::subtract(g, left, right, "rotary first part");
  }
  {
    Variable right;
    const Variable left = product(b, tables.cos);
    right = product(a, tables.sin);
    second = ops::add(g, left, right, "rotary second part", KernelKind::strided_add);
  }
  return ops::concatenate(g, first, second, "rotated");
}

/// x as complex numbers in fp32 times the table, cast back.
Variable complex_product(LayerContext& c, const Variable& wide, const Variable& table, DType dtype) {
  const Variable turned = ops::mul(c.g, wide, table, "rotary complex product", KernelKind::mixed_mul);
  return ops::cast(c.g, turned, dtype, "rotated");
}

std::array<Variable, 2> rotate_complex(LayerContext& c, const Variable& q, const Variable& k,
                                       const RotaryTables& tables) {
  Autograd& g = c.g;
  Variable k_wide, q_wide;
  q_wide = ops::cast(g, q, DType::fp32, "q in fp32");
  k_wide = ops::cast(g, k, DType::fp32, "k in fp32");
  // Llama-4 keeps both products until both are cast back.
  if (c.scenario.model.family != "llama4_text") {
    Variable rotated_q = complex_product(c, q_wide, tables.cos, q.dtype);
    Variable rotated_k = complex_product(c, k_wide, tables.cos, k.dtype);
    return {std::move(rotated_q), std::move(rotated_k)};
  }
  Variable k_turned, q_turned;
  q_turned = ops::mul(g, q_wide, tables.cos, "rotary complex product", KernelKind::mixed_mul);
  k_turned = ops::mul(g, k_wide, tables.cos, "rotary complex product", KernelKind::mixed_mul);
  Variable rotated_q = ops::cast(g, q_turned, q.dtype, "rotated");
  Variable rotated_k = ops::cast(g, k_turned, k.dtype, "rotated");
  q_wide = {};
  k_wide = {};
  q_turned = {};
  return {std::move(rotated_q), std::move(rotated_k)};
}

std::array<Variable, 2> rotate_partial(LayerContext& c, const Variable& q, const Variable& k,
                                       const RotaryTables& tables, std::int64_t q_width, std::int64_t k_width) {
  Autograd& g = c.g;
  const auto parts = [&](const Variable& x, std::int64_t width) {
    Variable turned = ops::slice(g, x, with_width(x, width));
    Variable rest = ops::slice(g, x, with_width(x, x.shape.last().size - width));
    return std::array<Variable, 2>{std::move(turned), std::move(rest)};
  };
  auto q_parts = parts(q, q_width);
  auto k_parts = parts(k, k_width);
  q_parts[0] = rotate(c, q_parts[0], tables, {q_width});
  k_parts[0] = rotate(c, k_parts[0], tables, {k_width});
  q_parts[0] = ops::concatenate(g, q_parts[0], q_parts[1], "rotated and the rest");
  k_parts[0] = ops::concatenate(g, k_parts[0], k_parts[1], "rotated and the rest");
  return {std::move(q_parts[0]), std::move(k_parts[0])};
}

}  // namespace

RotaryTables rotary_tables(LayerContext& c, const Variable& hidden) {
  TableMaker maker(c, rotary_width(c.scenario), hidden.dtype);
  const RotaryForm form = rotary_form(c.scenario);
  return form == RotaryForm::complex ? maker.complex() : maker.real(form == RotaryForm::chunks);
}

Variable rotate(LayerContext& c, const Variable& x, const RotaryTables& tables, Dim) {
  const Variable straight = ops::mul(c.g, x, tables.cos, "rotary x cos", KernelKind::strided_mul);
  Variable turned;
  {
    const Variable halves = rotate_half(c.g, x);
    turned = ops::mul(c.g, halves, tables.sin, "rotary rotated x sin", KernelKind::strided_mul);
  }
  return ops::add(c.g, straight, turned, "rotated", KernelKind::strided_add);
}

std::array<Variable, 2> rotate_both(LayerContext& c, const Variable& q, const Variable& k, const RotaryTables& tables,
                                    std::int64_t q_width, std::int64_t k_width) {
  Autograd& g = c.g;
  switch (rotary_form(c.scenario)) {
    case RotaryForm::halves: {
      Variable rotated_q = rotate(c, q, tables, {q_width});
      Variable rotated_k = rotate(c, k, tables, {k_width});
      return {std::move(rotated_q), std::move(rotated_k)};
    }
    case RotaryForm::partial: return rotate_partial(c, q, k, tables, q_width, k_width);
    case RotaryForm::chunks: {
      const auto turned = [&](const Variable& x) {
        const auto [first, second] = ops::halves(g, x);
        return turn(c, first, second, tables);
      };
      Variable rotated_q = turned(q);
      Variable rotated_k = turned(k);
      return {std::move(rotated_q), std::move(rotated_k)};
    }
    case RotaryForm::pairs: {
      // Every other angle: the first half of the tables holds one angle a pair.
      const auto half = [&](const Variable& x) { return ops::slice(g, x, with_width(x, x.shape.last().size / 2)); };
      const RotaryTables pairs{half(tables.cos), half(tables.sin)};
      const Variable q1 = half(q), q2 = half(q), k1 = half(k), k2 = half(k);
      Variable rotated_q = turn(c, q1, q2, pairs);
      Variable rotated_k = turn(c, k1, k2, pairs);
      return {std::move(rotated_q), std::move(rotated_k)};
    }
    case RotaryForm::complex: return rotate_complex(c, q, k, tables);
  }
  return {};
}

}  // namespace plimsoll
