// Messages between MPI processes (runtime/mpi/mpi_world.hpp): non-blocking sends and receives, tested until the timeout.
#include "runtime/mpi/mpi_world.hpp"

#include <fmt/format.h>
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <set>
#include <thread>

#include "planner/base/machine_error.hpp"

namespace plimsoll {

namespace {

/// A message is cut into parts that MPI's int counts.
constexpr std::size_t largest_part = std::size_t{1} << 30;

class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(std::chrono::duration<double> timeout) : timeout_(timeout) {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &world_);
  }
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;
  ~MpiTransport() override {
    if (!failed_) MPI_Finalize();
  }
  int rank() const override { return rank_; }
  int world() const override { return world_; }

  void abandon() override {
    failed_ = true;
    std::fflush(nullptr);
    MPI_Abort(MPI_COMM_WORLD, 3);
  }

  void exchange(const Members& members, const std::vector<std::span<const std::byte>>& send,
                const std::vector<std::span<std::byte>>& receive) override {
    std::vector<MPI_Request> requests;
    std::vector<int> peers;  // of each request
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (i == members.self) continue;
      const int peer = members.ranks[i];
      for (std::size_t at = 0; at == 0 || at < receive[i].size(); at += largest_part) {
        const std::size_t size = std::min(largest_part, receive[i].size() - at);
        peers.push_back(peer);
        MPI_Irecv(receive[i].data() + at, static_cast<int>(size), MPI_BYTE, peer, 0, MPI_COMM_WORLD,
                  &requests.emplace_back());
      }
      for (std::size_t at = 0; at == 0 || at < send[i].size(); at += largest_part) {
        const std::size_t size = std::min(largest_part, send[i].size() - at);
        peers.push_back(peer);
        MPI_Isend(send[i].data() + at, static_cast<int>(size), MPI_BYTE, peer, 0, MPI_COMM_WORLD,
                  &requests.emplace_back());
      }
    }
    wait(requests, peers);
  }

 private:
  void wait(std::vector<MPI_Request>& requests, const std::vector<int>& peers) {
    const auto start = std::chrono::steady_clock::now();
    for (int done = 0;;) {
      MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
      if (done) return;
      const auto waited = std::chrono::steady_clock::now() - start;
      if (waited > timeout_)
        throw MachineError(fmt::format("waited {:g} s for rank {}", timeout_.count(), late(requests, peers)));
      if (waited > std::chrono::milliseconds(1)) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  /// The ranks whose messages have not come or gone, as "1, 3".
  static std::string late(std::vector<MPI_Request>& requests, const std::vector<int>& peers) {
    std::set<int> ranks;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      int done = 0;
      MPI_Test(&requests[i], &done, MPI_STATUS_IGNORE);
      if (!done) ranks.insert(peers[i]);
    }
    return fmt::format("{}", fmt::join(ranks, ", "));
  }

  const std::chrono::duration<double> timeout_;
  int rank_ = 0, world_ = 1;
  bool failed_ = false;
};

}  // namespace

bool started_by_mpi() {
#ifdef OPEN_MPI
  // Not PMI_SIZE, which srun --mpi=pmi2 sets: an Open MPI that was built without that protocol ends in MPI_Init.  Ranks of srun
  // reach each other by TCP then.
  constexpr const char* names[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK"};
#else
  constexpr const char* names[] = {"PMI_SIZE", "PMIX_RANK"};
#endif
  for (const char* name : names) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

std::unique_ptr<Transport> connect_by_mpi(std::chrono::duration<double> timeout) {
  return std::make_unique<MpiTransport>(timeout);
}

}  // namespace plimsoll
