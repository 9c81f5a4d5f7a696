// What does a training process hold beside its tensors?  On the device: the CUDA context and loaded kernels, the engine's
// further code, NCCL's channels.  On the host: Python, PyTorch, the engine, NCCL.  None of it depends on the model's size.
//
// Measured on one and two H200 (PyTorch 2.11 + CUDA 13.0, NCCL 2.28.9, DeepSpeed 0.19.8), total minus free memory after the
// steps minus the allocator's reserved bytes; in MiB:
//   plain PyTorch, one GPU   1324.9 ... 1332.9    more with grouped GEMM kernels loaded; 18 less without cuDNN's attention
//   FSDP2, two GPUs          1612.9 ... 1618.9    + 288 for a communicator that has run a ring collective
//   DeepSpeed stage 3        1812.9               + 200 of code and streams
//   DeepSpeed stages 0-2     2100.9               + one more communicator: a clone of the world group (so too stage 3 in
//                                                 fp16, or of a model that was not built under zero.Init)
//   pinned host memory       + 18 ... 20 for 10 and 11 GB, 0 for less than 1 GB: an entry of 8 bytes a page of 4 KiB
//   expert parallelism       2976.9 ... 3418.9    + 12, + up to four communicators, + 154 for all-to-all with one peer
// and of plimsoll-run on the same machine, less its arena:
//   one GPU, or two whose collectives are copies    551    the context, kernels of cuBLASLt, cuDNN, CUTLASS
//   with NCCL                + 372 of kernels, + 484 for each communicator: one a group of ranks and lane
//   expert parallelism       + 640 for the communicator of an all-to-all with one peer
//   workspaces               + 32 of cuBLASLt, + what cuDNN asks for attention backward, to the byte in six shapes (below)
//   left over                + 7 ... 21 in seven runs: scratch of its own kernels, kernels loaded for a shape
//
// Beyond two GPUs, and on other devices, NCCL's own arithmetic (2.28.9, transport/p2p.cc): a channel in one direction takes
// 10 MiB where it receives and 2 MiB where it sends; rings have 24 channels over NVLink, all-to-all 32 for every peer in the
// node, and a shared pool of 256 MiB for peers behind the network.
#pragma once

#include <map>
#include <string>

#include "planner/account/ledger.hpp"

namespace plimsoll {

/// Whose process it is.
enum class Software : std::uint8_t { pytorch, deepspeed, plimsoll_run };

/// Of a job's attention, on one rank.
struct AttentionSizes {
  std::int64_t tokens = 0;  ///< of a micro-batch
  std::int64_t q_heads = 0, kv_heads = 0, head_dim = 0;
};

/// What of a job decides about the device memory outside the framework's pool.
struct ProcessUse {
  Software software = Software::pytorch;
  bool measured_device = false;  ///< an H200
  bool nvlink = true;            ///< GPUs of a node reach each other's memory over NVLink
  int world_size = 1;
  bool grouped_gemm = false;
  bool cudnn_attention = false;
  bool moe_groups = false;              ///< the engine keeps process groups for experts
  int ring_communicators = 0;           ///< that have run a ring collective
  int exchange_peers_in_node = 0;       ///< of the all-to-all group, without the rank itself; 0: no all-to-all
  bool exchange_crosses_nodes = false;  ///< the all-to-all group spans nodes
  AttentionSizes attention;             ///< plimsoll-run only: PyTorch takes workspaces from its pool
};

/// What cuDNN's attention backward asks for: dQ in fp32, N A d x 4 B; where query heads share keys dK and dV of every query head
/// in 16 bits, as much again; sums of rows, N A x 4 B.  As its get_workspace_size said (9.19, causal, bf16).
Bytes attention_workspace(const AttentionSizes& sizes);

OutsideFramework outside_framework(const ProcessUse& use);

/// The device's tables for pinned host memory, in whole pages of the device.
Bytes pinned_page_tables(Bytes pinned);

/// What of a job decides about the process's own host memory.
struct HostUse {
  bool built_on_cpu = false;
  bool zero_init = false;
  bool experts = false;  ///< grouped, native or AutoEP layers load further kernels
};

/// Resident bytes of the process without tensors, at the end of each phase from which on it differs from the one before.
std::map<std::string, Bytes> host_base(const HostUse& use);

/// Of it, what the ranks of a node share: mapped libraries.
Bytes host_base_shared();

}  // namespace plimsoll
