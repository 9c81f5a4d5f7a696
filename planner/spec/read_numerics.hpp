// What do a model's layers compute with, beyond their sizes?  Epsilon, rotary frequencies, coefficients of the router's losses:
// keys of config.json that move no byte, for the runtime that executes the step.
#pragma once

#include "planner/spec/config_reader.hpp"
#include "planner/spec/model.hpp"

namespace plimsoll {

/// A key that is missing, or no number, reads as Hugging Face's own default.
/// @param model with its family read
Numerics read_numerics(ConfigReader& config, const ModelSpec& model);

}  // namespace plimsoll
