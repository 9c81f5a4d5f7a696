// Who am I?  The launchers' environment variables (planner/base/rank_names.hpp).  Sources: torchrun, "Environment Variables";
// Open MPI FAQ, "what environment variables are available"; Slurm, srun manual, "OUTPUT ENVIRONMENT VARIABLES".
#include "planner/base/rank_names.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <optional>
#include <string_view>

#include "planner/base/machine_error.hpp"

namespace plimsoll {
namespace {

using Get = std::function<const char*(const char*)>;

std::optional<int> number(const Get& get, const char* name) {
  const char* text = get(name);
  if (!text) return {};
  const std::string_view view(text);
  int value = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  if (error != std::errc() || end != view.data() + view.size() || value < 0)
    throw MachineError(fmt::format("{} is \"{}\", no whole number", name, view));
  return value;
}

struct Launcher {
  const char *name, *rank, *world, *local_rank;
};
constexpr std::array launchers = {
    Launcher{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
    Launcher{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    Launcher{"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
};

}  // namespace

std::string first_host(const std::string& list) {
  const std::size_t bracket = list.find('[');
  const std::size_t comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const std::size_t end = list.find_first_of("-,]", bracket + 1);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
}

RankNames rank_names(const Get& get) {
  RankNames names;
  for (const Launcher& launcher : launchers) {
    const auto rank = number(get, launcher.rank);
    const auto world = number(get, launcher.world);
    // A shell inside a Slurm allocation has SLURM_NTASKS but is no task; one task alone needs nobody.
    if (!rank || !world || *world <= 1) continue;
    if (*rank >= *world)
      throw MachineError(fmt::format("{} is {}, but {} is {}", launcher.rank, *rank, launcher.world, *world));
    names.rank = *rank;
    names.world = *world;
    names.local_rank = number(get, launcher.local_rank).value_or(*rank);
    names.launcher = launcher.name;
    if (names.launcher == "Slurm") {
      const char* nodes = get("SLURM_STEP_NODELIST");
      if (!nodes) nodes = get("SLURM_NODELIST");
      if (nodes) names.master = first_host(nodes);
    }
    break;
  }
  if (const char* master = get("MASTER_ADDR")) names.master = master;
  if (const auto port = number(get, "MASTER_PORT")) names.port = *port + 1;
  if (const auto port = number(get, "PLIMSOLL_PORT")) names.port = *port;
  if (names.port > 65535)
    throw MachineError(fmt::format("port {} is beyond 65535: MASTER_PORT or PLIMSOLL_PORT", names.port));
  return names;
}

}  // namespace plimsoll
