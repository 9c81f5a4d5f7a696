// Collectives between MPI processes (calibrate/bench/host/host_collectives.hpp).
#include <fmt/format.h>
#include <mpi.h>

#include "calibrate/bench/host/floats.hpp"
#include "calibrate/bench/host/host_collectives.hpp"

namespace plimsoll::calibrate {
namespace {

class MpiCollectives : public HostCollectives {
 public:
  MpiCollectives() {
    int ready = 0;
    MPI_Initialized(&ready);
    if (ready == 0) MPI_Init(nullptr, nullptr);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
  }
  ~MpiCollectives() override { MPI_Finalize(); }
  MpiCollectives(const MpiCollectives&) = delete;
  MpiCollectives& operator=(const MpiCollectives&) = delete;

  std::function<void()> prepare(const Point& point) override {
    const std::string op = point.label("op");
    const auto elements = static_cast<std::size_t>(point.size("bytes")) / sizeof(float);
    const auto send = std::make_shared<Floats>(elements, 1.0F);
    const auto receive = std::make_shared<Floats>(elements, 0.0F);
    const int all = static_cast<int>(elements);
    const int part = all / ranks_;
    MPI_Comm const world = MPI_COMM_WORLD;
    if (op == "all_gather")
      return [=] { MPI_Allgather(send->data(), part, MPI_FLOAT, receive->data(), part, MPI_FLOAT, world); };
    if (op == "reduce_scatter")
      return [=] { MPI_Reduce_scatter_block(send->data(), receive->data(), part, MPI_FLOAT, MPI_SUM, world); };
    if (op == "all_reduce")
      return [=] { MPI_Allreduce(send->data(), receive->data(), all, MPI_FLOAT, MPI_SUM, world); };
    if (op == "all_to_all")
      return [=] { MPI_Alltoall(send->data(), part, MPI_FLOAT, receive->data(), part, MPI_FLOAT, world); };
    throw Unsupported(fmt::format("the host backend has no collective {}", op));
  }

 private:
  int ranks_ = 1;
};

}  // namespace

std::unique_ptr<HostCollectives> make_mpi_collectives() { return std::make_unique<MpiCollectives>(); }

}  // namespace plimsoll::calibrate
