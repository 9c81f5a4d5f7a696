// Which files does DeepSpeed write when it saves, and how large are they?  save_16bit_model and save_checkpoint of all stages,
// with native MoE and AutoEP.
//
//   save_16bit/m.bin        16-bit weights of the first rank: 2 Psi (stages 1 and 2: the flat buffers with their padding, 2 A);
//                           at stage 3 only if it gathers on save, and not under AutoEP
//   mp_rank_00_model_states stage 0: weights, masters and moments, 14 Psi; stages 1 and 2: 2 A; with MoE the dense weights,
//                           each name by itself
//   zero_pp_rank_R_..._optim_states    12 a (stage 3: 12 P) on every rank
//   zero_pp_rank_R_..._model_states    stage 3: placeholders
//   layer_L_expert_E_...    one expert, written once
//   expp_rank_R_...         stage 0 with MoE: the optimizer's state again
// torch.save's own overhead is added: zip entries of storages, pickled tensors and names.
// Source: DeepSpeed 0.19.8 (runtime/engine.py); files of five measured runs, each above 1 MB met within 1e-6 of its size.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "planner/spec/scenario.hpp"

namespace plimsoll {

struct CheckpointFile {
  std::string name;  ///< "save_16bit/m.bin", "checkpoint/global_step1/mp_rank_00_model_states.pt"
  Bytes bytes;
  Bytes tensors{};  ///< of them, the elements of the tensors; the rest is what torch.save writes around them
};

/// Empty for other engines than DeepSpeed.
std::vector<CheckpointFile> checkpoint_files(const Scenario& scenario, std::string_view tag = "global_step1");

}  // namespace plimsoll
