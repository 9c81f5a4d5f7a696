// How is a plan written down, so that it reads back as it is and so that DeepSpeed runs it?
#pragma once

#include <string>
#include <vector>

#include "planner/spec/model.hpp"
#include "planner/spec/plan.hpp"

namespace plimsoll {

/// A complete plan.json: every key that the plan's engine looks at.  read_plan() of it gives the same settings.
std::string write_plan_json(const Plan& plan);

/// True if two plans ask for the same run, wherever their keys were stated.
bool same_settings(const Plan& a, const Plan& b);

/// A ds_config.json that DeepSpeed 0.19.8 accepts (engine deepspeed only).  What such a file cannot say is given by
/// beside_ds_config(); with it read_ds_config() gives the same settings.
/// @param model names AutoEP's preset; may be null
std::string write_ds_config(const Plan& plan, const ModelSpec* model = nullptr);

/// The overrides ("sequence=4096") that a ds_config.json needs beside it to be this plan.
std::vector<std::string> beside_ds_config(const Plan& plan);

}  // namespace plimsoll
