// Does any cluster.json make its reader or the routes of its graph crash, or refuse without a place?  libFuzzer.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "planner/base/check.hpp"
#include "planner/spec/limits.hpp"
#include "planner/spec/read_cluster.hpp"
#include "planner/spec/topology.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace plimsoll;
  auto file = std::make_shared<SourceFile>();
  file->name = "fuzzed.json";
  file->text.assign(reinterpret_cast<const char*>(data), size);
  const auto document = parse_document(file);
  if (!document) return 0;
  const auto cluster = read_cluster(*document, "fuzzed");
  for (const Diagnostic& diagnostic : cluster.diagnostics()) {
    CHECK(!diagnostic.message.empty() && diagnostic.place.line > 0, "a diagnostic has a message and a place");
    (void)format(diagnostic);
  }
  if (!cluster) return 0;
  const int world = cluster->world();
  CHECK(world > 0 && world <= limits::world && cluster->device.memory.count > 0, "a cluster has GPUs with memory");
  const auto route = find_route(*cluster, 0, world - 1);
  CHECK(route || has_errors(route.diagnostics()), "ranks that do not reach each other are named");
  const auto share = tier_share(*cluster, {world, 1, 0}, CollectiveKind::all_to_all);
  CHECK(share || has_errors(share.diagnostics()), "a group that is torn apart is named");
  return 0;
}
