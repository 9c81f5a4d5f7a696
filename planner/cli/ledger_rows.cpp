// The rows of a ledger (planner/cli/ledger_rows.hpp).
#include "planner/cli/ledger_rows.hpp"

namespace plimsoll {

std::vector<LedgerRow> rows_at_peak(const Ledger& ledger) {
  using Kind = LedgerRow::Kind;
  std::vector<LedgerRow> rows;
  for (int i = 0; i < category_count; ++i) {
    const std::string name = name_of(static_cast<Category>(i));
    const Bytes bytes = ledger.replay.categories_at_peak[static_cast<std::size_t>(i)];
    rows.push_back({name, "gpu.categories_at_peak." + name, bytes, Kind::category});
  }
  rows.push_back(
      {"allocator_slack", "gpu.categories_at_peak.allocator_slack", ledger.replay.slack_at_peak, Kind::unused});
  rows.push_back({"allocated at the peak", "gpu.allocated_peak_bytes", ledger.allocated_peak.value, Kind::allocated});
  rows.push_back(
      {"reserved but not in use then", "", ledger.reserved_peak.value - ledger.allocated_peak.value, Kind::unused});
  rows.push_back({"CUDA context and kernels", "gpu.outside_framework.context", ledger.outside.context, Kind::outside});
  rows.push_back({"NCCL", "gpu.outside_framework.nccl", ledger.outside.nccl, Kind::outside});
  rows.push_back({"engine's libraries", "gpu.outside_framework.libraries", ledger.outside.libraries, Kind::outside});
  rows.push_back({"device peak", "gpu.device_peak_bytes", ledger.device_peak.value, Kind::device});
  return rows;
}

}  // namespace plimsoll
