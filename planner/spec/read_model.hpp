// Which model does a file, a preset's name or a sketch describe?  Readers of Hugging Face's config.json, as transformers 4
// and 5 write it, for the families of planner/spec/model_family.hpp; a config of another family that states the generic
// dimensions is read as a model like Llama, with a warning.
#pragma once

#include <string>
#include <string_view>

#include "planner/base/diagnostic.hpp"
#include "planner/spec/document.hpp"
#include "planner/spec/model.hpp"

namespace plimsoll {

/// The model that `argument` names: a file (or a directory that holds a config.json), "sketch:...", or a preset of
/// configs/models.
/// @throws MachineError if it can only be a file (it ends in .json or holds a slash) and is missing or unreadable
Result<ModelSpec> load_model(std::string_view argument);

/// Reads a config.json.  All errors come at once: wrong types and ranges, missing keys, dimensions that contradict each
/// other, more than limits::parameters parameters.
/// @param name of the model, for listings
Result<ModelSpec> read_model(const Document& document, std::string name);

/// Reads "sketch:dense=56B,expert=144B,experts=64,top_k=2,hidden=8192,layers=48": sizes on a napkin.  `dense` is required;
/// vocab, heads and kv_heads may be stated too.  The model's totals are exactly those stated; what does not fit into whole
/// layers is one parameter of role `other`, and every assumption is among ModelSpec::assumptions.
Result<ModelSpec> read_sketch(std::string_view text);

}  // namespace plimsoll
