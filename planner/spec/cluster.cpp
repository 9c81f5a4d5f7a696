// Names of the words of cluster.hpp, as outputs show them.
#include "planner/spec/cluster.hpp"

namespace plimsoll {

const char* name_of(Evidence evidence) {
  switch (evidence) {
    case Evidence::measured: return "measured";
    case Evidence::fitted: return "fitted";
    case Evidence::interpolated: return "interpolated";
    case Evidence::extrapolated: return "extrapolated";
    case Evidence::assumed: return "assumed";
  }
  return "";
}

const char* name_of(Tier tier) {
  switch (tier) {
    case Tier::nvlink: return "nvlink";
    case Tier::pcie: return "pcie";
    case Tier::nic: return "nic";
    case Tier::spine: return "spine";
    case Tier::host: return "host";
  }
  return "";
}

}  // namespace plimsoll
