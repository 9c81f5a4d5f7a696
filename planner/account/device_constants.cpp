// The constants of planner/account/device_constants.hpp, each with what it was read off from.
#include "planner/account/device_constants.hpp"

namespace plimsoll {
namespace {

constexpr Bytes mebibytes(double count) { return Bytes(static_cast<std::int64_t>(count * (1 << 20))); }
constexpr Bytes megabytes(std::int64_t count) { return Bytes(count * 1'000'000); }

// Dense models under plain PyTorch read 1324.9 or 1326.9, with grouped GEMM 1330.9 or 1332.9; under DeepSpeed the grouped
// GEMM adds 2.  What is left over of the driver's 2 MiB pages is not told apart.
constexpr Bytes context_and_kernels = mebibytes(1324.875);
constexpr Bytes grouped_kernels = mebibytes(2);
constexpr Bytes grouped_kernels_plain = mebibytes(6);
constexpr Bytes deepspeed_code = mebibytes(200);
constexpr Bytes offload_streams = mebibytes(18);
constexpr Bytes expert_groups = mebibytes(12);

constexpr Bytes channel_direction = mebibytes(12);
constexpr int ring_channels_nvlink = 24;
constexpr int ring_channels_pcie = 4;  // assumed: NCCL lays two rings, both ways, where there is no NVLink
constexpr int exchange_channels = 32;
constexpr Bytes exchange_one_peer = mebibytes(154);  // measured; NCCL's arithmetic says at most 384
// Read off from plimsoll-run's communicators as they are taken and given back.  Why a ring takes more than PyTorch's 288 is not
// known; 60 of the exchange's stay when it is given back.
constexpr Bytes runtime_context = mebibytes(923);
constexpr Bytes runtime_ring = mebibytes(484);
constexpr Bytes runtime_exchange_one_peer = mebibytes(640);
constexpr Bytes network_pool = mebibytes(256);

Bytes exchange_memory(const DeviceUse& use) {
  if (use.exchange_peers_in_node == 0 && !use.exchange_crosses_nodes) return Bytes(0);
  Bytes memory = use.exchange_crosses_nodes ? network_pool : Bytes(0);
  if (use.exchange_peers_in_node == 1 && use.nvlink)
    return memory + (use.reference_runtime ? runtime_exchange_one_peer : exchange_one_peer);
  const int channels = use.nvlink ? exchange_channels : ring_channels_pcie;
  return memory + channel_direction * (std::int64_t{channels} * use.exchange_peers_in_node);
}

}  // namespace

OutsideFramework outside_framework(const DeviceUse& use) {
  OutsideFramework outside;
  outside.context = use.reference_runtime ? runtime_context : context_and_kernels;
  if (use.deepspeed) outside.libraries += deepspeed_code;
  if (use.grouped_gemm && !use.reference_runtime)
    outside.libraries += use.deepspeed ? grouped_kernels : grouped_kernels_plain;
  if (use.offload) outside.libraries += offload_streams;
  if (use.moe_groups && use.world_size > 1) outside.nccl += expert_groups;
  const int channels = use.nvlink ? ring_channels_nvlink : ring_channels_pcie;
  const Bytes ring = use.reference_runtime && use.nvlink ? runtime_ring : channel_direction * std::int64_t{channels};
  outside.nccl += ring * std::int64_t{use.ring_communicators} + exchange_memory(use);
  outside.evidence = use.measured_device && use.world_size <= 2 ? Evidence::measured : Evidence::assumed;
  return outside;
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
