// Which parameters does a model have?  In the order of named_parameters() of transformers 5.17: the embedding, each decoder
// layer (attention, feed-forward block, norms), the final norm, the head.
#pragma once

#include <vector>

#include "planner/spec/model.hpp"
#include "planner/spec/model_family.hpp"

namespace plimsoll {

/// Lists the parameters of a model whose other fields are filled.  Stops once the total is beyond limits::parameters;
/// each size on its own fits int64 as long as every dimension lies within its limit (planner/spec/limits.hpp).
std::vector<ParameterDecl> list_parameters(const ModelSpec& model, const ModelFamily& family);

/// Of a parameter's elements those that one token passes: of an expert's, top_k of the experts.
std::int64_t active_numel(const ModelSpec& model, const ParameterDecl& parameter);

}  // namespace plimsoll
