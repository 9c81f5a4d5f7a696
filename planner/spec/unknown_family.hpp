// What is a config.json of a family that is not known read as, and which of its keys does that reading leave out?  The
// nearest that there is: Llama's layers, with experts and latent attention where its keys say so.  A key that says how
// layers are built and is not read makes the answer doubtful, and experts that are not read make it wrong.
#pragma once

#include <string>
#include <vector>

#include "planner/spec/document.hpp"
#include "planner/spec/model_family.hpp"

namespace plimsoll {

ModelFamily family_of_unknown(const Node& config);

/// Keys among `unread` that say what a layer is built of, experts apart from the rest.
struct UnreadKeys {
  std::vector<const Node*> experts;
  std::vector<const Node*> layers;
};

UnreadKeys unread_dimensions(const std::vector<const Node*>& unread);

/// "/moe_num_experts, /moe_k".
std::string pointers_of(const std::vector<const Node*>& values);

}  // namespace plimsoll
