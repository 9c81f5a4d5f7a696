// Collectives between threads: each reads its peers' parts directly, two barriers around (calibrate/bench/host/host_collectives.hpp).
#include <fmt/format.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstring>
#include <thread>

#include "calibrate/bench/host/floats.hpp"
#include "calibrate/bench/host/host_collectives.hpp"

namespace plimsoll::calibrate {
namespace {

using Clock = std::chrono::steady_clock;

class ThreadCollective : public Work {
 public:
  ThreadCollective(std::string op, std::size_t ranks, std::size_t elements)
      : op_(std::move(op)), ranks_(ranks), part_(elements / ranks), input_(ranks), output_(ranks) {
    for (std::size_t r = 0; r < ranks; ++r) {
      input_[r].assign(elements, static_cast<float>(r + 1));
      output_[r].assign(elements, 0);
    }
  }

  std::vector<double> run(int count) override {
    std::vector<double> times(static_cast<std::size_t>(count));
    std::barrier together(static_cast<std::ptrdiff_t>(ranks_));
    const auto one = [&](std::size_t rank) {
      for (double& time : times) {
        together.arrive_and_wait();
        const auto start = Clock::now();
        move(rank, together);
        together.arrive_and_wait();
        if (rank == 0) time = std::chrono::duration<double>(Clock::now() - start).count();
      }
    };
    std::vector<std::jthread> others;
    for (std::size_t rank = 1; rank < ranks_; ++rank) others.emplace_back(one, rank);
    one(0);
    return times;
  }

 private:
  template <class Barrier>
  void move(std::size_t rank, Barrier& together) {
    if (op_ == "all_gather") return gather(rank);
    if (op_ == "all_to_all") return exchange(rank);
    reduce_part(rank);
    if (op_ != "all_reduce") return;
    together.arrive_and_wait();
    for (std::size_t peer = 0; peer < ranks_; ++peer) {
      if (peer != rank) copy_part(output_[peer], peer, output_[rank], peer);
    }
  }
  void gather(std::size_t rank) {
    for (std::size_t peer = 0; peer < ranks_; ++peer) copy_part(input_[peer], peer, output_[rank], peer);
  }
  void exchange(std::size_t rank) {
    for (std::size_t peer = 0; peer < ranks_; ++peer) copy_part(input_[peer], rank, output_[rank], peer);
  }
  /// The sum of all ranks' part `rank`.
  void reduce_part(std::size_t rank) {
    float* sum = output_[rank].data() + rank * part_;
    std::memcpy(sum, input_[0].data() + rank * part_, part_ * sizeof(float));
    for (std::size_t peer = 1; peer < ranks_; ++peer) {
      const float* part = input_[peer].data() + rank * part_;
      for (std::size_t i = 0; i < part_; ++i) sum[i] += part[i];
    }
  }
  void copy_part(const Floats& from, std::size_t i, Floats& to, std::size_t j) const {
    std::memcpy(to.data() + j * part_, from.data() + i * part_, part_ * sizeof(float));
  }

  std::string op_;
  std::size_t ranks_, part_;
  std::vector<Floats> input_, output_;
};

}  // namespace

std::unique_ptr<Work> thread_collective(const Point& point) {
  const std::string op = point.label("op");
  if (op != "all_gather" && op != "reduce_scatter" && op != "all_reduce" && op != "all_to_all")
    throw Unsupported(fmt::format("the host backend has no collective {}", op));
  const auto ranks = static_cast<std::size_t>(std::max<std::int64_t>(2, point.size("ranks")));
  return std::make_unique<ThreadCollective>(op, ranks, static_cast<std::size_t>(point.size("bytes")) / sizeof(float));
}

}  // namespace plimsoll::calibrate
