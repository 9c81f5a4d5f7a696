// Who is a process in its job, by what each launcher tells it?
#include "planner/base/rank_names.hpp"

#include <gtest/gtest.h>

#include <map>

#include "planner/base/machine_error.hpp"

namespace plimsoll {
namespace {

using Environment = std::map<std::string, std::string>;

RankNames names_of(const Environment& environment) {
  return rank_names([&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

TEST(RankNames, OfEachLauncher) {
  const RankNames torch = names_of(
      {{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}});
  EXPECT_EQ(torch.rank, 3);
  EXPECT_EQ(torch.world, 4);
  EXPECT_EQ(torch.local_rank, 1);
  EXPECT_EQ(torch.master, "node1");
  EXPECT_EQ(torch.port, 29501);
  const RankNames mpi =
      names_of({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}});
  EXPECT_EQ(mpi.rank, 1);
  EXPECT_EQ(mpi.launcher, "Open MPI");
  const RankNames slurm = names_of(
      {{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "16"}, {"SLURM_LOCALID", "5"}, {"SLURM_STEP_NODELIST", "gpu[07-08]"}});
  EXPECT_EQ(slurm.master, "gpu07");
  EXPECT_EQ(names_of({}).world, 1);
  EXPECT_EQ(names_of({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}).world, 1);
}

TEST(RankNames, ContradictionsAreNamed) {
  EXPECT_THROW(names_of({{"RANK", "4"}, {"WORLD_SIZE", "4"}}), MachineError);
  EXPECT_THROW(names_of({{"RANK", "x"}, {"WORLD_SIZE", "4"}}), MachineError);
}

TEST(RankNames, FirstHostOfASlurmList) {
  EXPECT_EQ(first_host("node7"), "node7");
  EXPECT_EQ(first_host("a,b"), "a");
  EXPECT_EQ(first_host("n[003-010,020],m"), "n003");
  EXPECT_EQ(first_host("n[5,7]"), "n5");
}

}  // namespace
}  // namespace plimsoll
