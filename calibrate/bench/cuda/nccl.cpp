// NCCL communicators and calls (calibrate/bench/cuda/nccl.hpp).
#include "calibrate/bench/cuda/nccl.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <cstring>

#include "calibrate/bench/cuda/kernels.hpp"
#include "planner/base/machine_error.hpp"

namespace plimsoll::calibrate::cuda {
namespace {

void check_nccl(ncclResult_t code, const char* what) {
  if (code != ncclSuccess) throw MachineError(fmt::format("{}: {}", what, ncclGetErrorString(code)));
}

std::string hexadecimal(const ncclUniqueId& id) {
  std::string text;
  for (const char c : id.internal) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}
ncclUniqueId from_hexadecimal(const std::string& text) {
  ncclUniqueId id{};
  for (std::size_t i = 0; i < sizeof id.internal && 2 * i + 1 < text.size(); ++i)
    id.internal[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return id;
}

/// Bytes from one rank to another of a skewed exchange: rank 0 receives half of everything beside its even part.
std::size_t part_of(std::size_t total, int ranks, int to, bool skewed) {
  const std::size_t even = total / static_cast<std::size_t>(ranks);
  if (!skewed) return even;
  const std::size_t half = even / 2;
  return to == 0 ? even + half * static_cast<std::size_t>(ranks - 1) : even - half;
}

}  // namespace

Nccl::Nccl(Ranks& ranks) : ranks_(ranks) {
  ncclUniqueId id{};
  if (ranks.rank() == 0) check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
  id = from_hexadecimal(ranks.broadcast(ranks.rank() == 0 ? hexadecimal(id) : std::string()));
  check_nccl(ncclCommInitRank(&groups_["world"], ranks.world(), id, ranks.rank()), "ncclCommInitRank");
}

Nccl::~Nccl() {
  for (auto& [name, communicator] : groups_) ncclCommAbort(communicator);
}

ncclComm_t Nccl::group(const std::string& name) {
  const auto found = groups_.find(name);
  if (found != groups_.end()) return found->second;
  int size = ranks_.world(), stride = 1;
  if (name != "second" && std::sscanf(name.c_str(), "%dx%d", &size, &stride) != 2)
    throw Unsupported(fmt::format("no group is called {}", name));
  // Ranks r, r + stride, ..., size of them: blocks of size * stride ranks, by remainder within.
  const int color = ranks_.rank() / (size * stride) * stride + ranks_.rank() % stride;
  ncclComm_t made = nullptr;
  check_nccl(ncclCommSplit(groups_.at("world"), color, ranks_.rank(), &made, nullptr), "ncclCommSplit");
  return groups_[name] = made;
}

void Nccl::align(cudaStream_t stream) {
  check_nccl(ncclAllReduce(small_.get(), small_.get(), 1, ncclFloat, ncclSum, groups_.at("world"), stream),
             "ncclAllReduce");
}

Launch Nccl::launch(const std::string& op, std::int64_t bytes, const std::string& dtype,
                    const std::string& group_name) {
  ncclComm_t const comm = group(group_name);
  int n = 1, me = 0;
  check_nccl(ncclCommCount(comm, &n), "ncclCommCount");
  check_nccl(ncclCommUserRank(comm, &me), "ncclCommUserRank");
  const bool fp32 = dtype == "fp32";
  const ncclDataType_t type = fp32 ? ncclFloat : ncclBfloat16;
  const std::size_t width = fp32 ? 4 : 2;
  const std::size_t part = static_cast<std::size_t>(bytes) / width / static_cast<std::size_t>(n);
  const std::size_t full = part * static_cast<std::size_t>(n);
  if (part == 0) throw Unsupported("fewer elements than ranks");
  const bool skewed = op == "all_to_all_skewed";
  const auto send =
      std::make_shared<Buffer>(random_bf16(static_cast<std::int64_t>(full * width / 2), 1, main_stream().get()));
  const auto receive = std::make_shared<Buffer>(full * width * (skewed && me == 0 ? static_cast<std::size_t>(n) : 1));
  void *const from = send->get(), *const to = receive->get();
  const auto keep = [send, receive](auto call) {
    return [send, receive, call](cudaStream_t stream) { check_nccl(call(stream), "a collective"); };
  };
  if (op == "all_gather") return keep([=](cudaStream_t s) { return ncclAllGather(from, to, part, type, comm, s); });
  if (op == "reduce_scatter")
    return keep([=](cudaStream_t s) { return ncclReduceScatter(from, to, part, type, ncclSum, comm, s); });
  if (op == "all_reduce")
    return keep([=](cudaStream_t s) { return ncclAllReduce(from, to, full, type, ncclSum, comm, s); });
  if (op == "broadcast") return keep([=](cudaStream_t s) { return ncclBroadcast(from, to, full, type, 0, comm, s); });
  if (op == "send_receive") {
    return keep([=](cudaStream_t s) {
      ncclGroupStart();
      ncclSend(from, full, type, (me + 1) % n, comm, s);
      ncclRecv(to, full, type, (me + n - 1) % n, comm, s);
      return ncclGroupEnd();
    });
  }
  if (op != "all_to_all" && !skewed) throw Unsupported(fmt::format("no collective is called {}", op));
  return keep([=](cudaStream_t s) {
    ncclGroupStart();
    std::size_t sent = 0, received = 0;
    for (int peer = 0; peer < n; ++peer) {
      const std::size_t out = part_of(full, n, peer, skewed), in = part_of(full, n, me, skewed);
      ncclSend(static_cast<char*>(from) + sent * width, out, type, peer, comm, s);
      ncclRecv(static_cast<char*>(to) + received * width, in, type, peer, comm, s);
      sent += out;
      received += in;
    }
    return ncclGroupEnd();
  });
}

std::unique_ptr<Work> Nccl::prepare(const Point& point) {
  const std::int64_t bytes = point.size("bytes");
  const int calls = bytes <= (1 << 20) ? 20 : bytes <= (1 << 26) ? 6 : 2;
  return std::make_unique<TimedQueue>(launch(point.label("op"), bytes, point.label("dtype"), point.label("group")),
                                      calls, 60.0 + 12.0 * calls, [this](cudaStream_t stream) { align(stream); });
}

std::shared_ptr<void> Nccl::fresh_communicator() {
  groups_.erase("fresh");
  ncclComm_t made = nullptr;
  check_nccl(ncclCommSplit(groups_.at("world"), 0, ranks_.rank(), &made, nullptr), "ncclCommSplit");
  groups_["fresh"] = made;
  const cudaStream_t stream = main_stream().get();
  check_nccl(ncclAllReduce(small_.get(), small_.get(), 1024, ncclFloat, ncclSum, made, stream), "ncclAllReduce");
  ncclGroupStart();
  for (int peer = 0; peer < ranks_.world(); ++peer) {
    ncclSend(small_.get(), 8, ncclFloat, peer, made, stream);
    ncclRecv(small_.as<float>() + 512, 8, ncclFloat, peer, made, stream);
  }
  check_nccl(ncclGroupEnd(), "ncclGroupEnd");
  main_stream().wait();
  return {};
}

std::string nccl_version() {
  int version = 0;
  ncclGetVersion(&version);
  return fmt::format("NCCL {}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

}  // namespace plimsoll::calibrate::cuda
