// The routines of planner/step/call.hpp on the host, for one scalar type each: the numerical reference.  Each is the plain
// formula; what a device fuses is fused here in meaning only.
#pragma once

#include "runtime/core/backend.hpp"

namespace plimsoll::host {

/// @tparam S float or double: what the arithmetic runs in (runtime/host/matrix.hpp)
template <class S>
void product(const Operation& op);
template <class S>
void grouped_product(const Operation& op);
template <class S>
void embedding(const Operation& op);
template <class S>
void embedding_backward(const Operation& op);
template <class S>
void norm(const Operation& op);
template <class S>
void norm_backward(const Operation& op);
template <class S>
void rotary(const Operation& op);
template <class S>
void head_norm_rotary(const Operation& op);
template <class S>
void head_norm_rotary_backward(const Operation& op);
template <class S>
void attention(const Operation& op);
template <class S>
void attention_backward(const Operation& op);
template <class S>
void swiglu(const Operation& op);
template <class S>
void swiglu_backward(const Operation& op);
template <class S>
void add(const Operation& op);
template <class S>
void cross_entropy(const Operation& op);
template <class S>
void route(const Operation& op);
template <class S>
void route_backward(const Operation& op);
template <class S>
void scatter_rows(const Operation& op);
template <class S>
void gather_rows(const Operation& op);

// The same in every type.
void copy(const Operation& op);
void fill_zero(const Operation& op);
void regroup(const Operation& op);
void accumulate(const Operation& op);
void adamw(const Operation& op, const Hyperparameters& hyperparameters);

}  // namespace plimsoll::host
