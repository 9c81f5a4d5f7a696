// The constants of planner/account/device_constants.hpp, each with what it was read off from.
#include "planner/account/device_constants.hpp"

namespace plimsoll {
namespace {

constexpr Bytes mebibytes(double count) { return Bytes(static_cast<std::int64_t>(count * (1 << 20))); }
constexpr Bytes megabytes(std::int64_t count) { return Bytes(count * 1'000'000); }

constexpr Bytes channel_direction = mebibytes(12);
constexpr int ring_channels_nvlink = 24;
constexpr int ring_channels_pcie = 4;  // assumed: NCCL lays two rings, both ways, where there is no NVLink
constexpr int exchange_channels = 32;
constexpr Bytes alone_in_group =
    mebibytes(192);  // a communicator of one rank that has run a collective, under DeepSpeed
constexpr Bytes network_pool = mebibytes(256);
constexpr Bytes expert_groups = mebibytes(12);
constexpr Bytes cudnn_kernels = mebibytes(18);  // attention with scores in memory, or of other head sizes, is without

/// What a process takes on an H200.
struct Constants {
  Bytes context;            ///< the CUDA context and loaded kernels
  Bytes code;               ///< further code and streams of the engine
  Bytes grouped_kernels;    ///< more, with grouped GEMMs
  Bytes ring;               ///< a communicator that has run a ring collective over NVLink
  Bytes exchange_one_peer;  ///< one that has run an all-to-all with one peer; NCCL's arithmetic says at most 384
  Bytes nccl_kernels;       ///< more with the first communicator; 0: told with the context
  Bytes product_workspace;  ///< of cuBLASLt, outside the pool
  Bytes beyond;             ///< how much more was measured, at most
};

// Dense models under plain PyTorch read 1324.9 or 1326.9, with grouped GEMM 1326.9 to 1332.9; under DeepSpeed the grouped
// GEMM adds 2.  What is left over of the driver's 2 MiB pages is not told apart: at most 6.06 more in 85 runs.
constexpr Bytes more_pages = mebibytes(6.0625);
constexpr Constants pytorch{
    mebibytes(1324.875), Bytes(0), mebibytes(6), Bytes(channel_direction.count* ring_channels_nvlink),
    mebibytes(154),      Bytes(0), Bytes(0),     more_pages};
constexpr Constants deepspeed{pytorch.context,           mebibytes(200), mebibytes(2), pytorch.ring,
                              pytorch.exchange_one_peer, Bytes(0),       Bytes(0),     more_pages};
// Read off from its communicators as they are taken and given back; the context holds the flags of peers (2).  Why a ring takes more
// than PyTorch's 288 is not known; 60 of the exchange's stay when it is given back.
constexpr Constants plimsoll_run{mebibytes(551), Bytes(0),       Bytes(0),      mebibytes(484),
                                 mebibytes(640), mebibytes(372), mebibytes(32), mebibytes(21)};

const Constants& constants_of(Software software) {
  switch (software) {
    case Software::pytorch: return pytorch;
    case Software::deepspeed: return deepspeed;
    case Software::plimsoll_run: return plimsoll_run;
  }
  return pytorch;
}

Bytes exchange_memory(const ProcessUse& use) {
  if (use.exchange_peers_in_node == 0 && !use.exchange_crosses_nodes) return Bytes(0);
  const Bytes memory = use.exchange_crosses_nodes ? network_pool : Bytes(0);
  if (use.exchange_peers_in_node == 1 && use.nvlink) return memory + constants_of(use.software).exchange_one_peer;
  const int channels = use.nvlink ? exchange_channels : ring_channels_pcie;
  return memory + channel_direction * (std::int64_t{channels} * use.exchange_peers_in_node);
}

}  // namespace

Bytes attention_workspace(const AttentionSizes& sizes) {
  const std::int64_t sums = sizes.tokens * sizes.q_heads, wide = sums * sizes.head_dim;
  return Bytes(sums == 0 ? 0 : 4 * wide + (sizes.kv_heads < sizes.q_heads ? 4 * wide : 0) + 4 * sums + 256);
}

OutsideFramework outside_framework(const ProcessUse& use) {
  const Constants& process = constants_of(use.software);
  OutsideFramework outside;
  outside.context = process.context;
  if (!use.cudnn_attention && use.software != Software::plimsoll_run) outside.context -= cudnn_kernels;
  outside.libraries = process.code + process.product_workspace + attention_workspace(use.attention);
  if (use.grouped_gemm) outside.libraries += process.grouped_kernels;
  if (use.moe_groups) outside.nccl += expert_groups;
  const bool alone = use.software == Software::deepspeed && use.world_size == 1;
  const Bytes ring = alone        ? alone_in_group
                     : use.nvlink ? process.ring
                                  : channel_direction * std::int64_t{ring_channels_pcie};
  outside.nccl += ring * std::int64_t{use.ring_communicators} + exchange_memory(use);
  if (outside.nccl.count > 0) outside.nccl += process.nccl_kernels;
  outside.beyond = process.beyond;
  outside.evidence = use.measured_device && use.world_size <= 2 ? Evidence::measured : Evidence::assumed;
  return outside;
}

Bytes pinned_page_tables(Bytes pinned) {
  constexpr std::int64_t entry = 8, host_page = 4096, device_page = 2 << 20;
  return Bytes(pinned.count / host_page * entry / device_page * device_page);
}

std::map<std::string, Bytes> host_base(const HostUse& use) {
  // Five runs of DeepSpeed: 1154 after building (1052 on the CPU, where no GPU kernel is loaded yet; 1174 under zero.Init),
  // 1226 to 1241 after initialisation, 1664 to 1706 after the first forward, 1709 to 1820 after the first backward, 1823 to
  // 2006 from the first optimizer step on, all in MB.  171 to 178 of it, 257 to 318 later, are mapped pages of library files;
  // another installation of the same libraries had 316 more of those and not of the rest.  Expert layers load more kernels;
  // how much was not measured.
  const Bytes expert_kernels = use.experts ? megabytes(300) : Bytes(0);
  return {{"model_built", megabytes(use.built_on_cpu ? 1052
                                    : use.zero_init  ? 1174
                                                     : 1154)},
          {"initialized", megabytes(1235)},
          {"first_step_forward", megabytes(1668) + expert_kernels},
          {"first_step_backward", megabytes(1770) + expert_kernels},
          {"first_step_step", megabytes(1900) + expert_kernels}};
}

Bytes host_base_shared() { return megabytes(270); }

}  // namespace plimsoll
