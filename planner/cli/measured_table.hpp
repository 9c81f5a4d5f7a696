// What was measured?  Tables of training runs: rows with the model (a config.json), the plan, the cluster and the figures
// that the run's own counters showed.  As JSON, {"rows": [...]} or the rows alone, or as CSV with the same columns.
//
//   id, cluster, model, plan (or ds_config), process ("fresh": the run had its process to itself), parameters
//   measured.allocated_peak_bytes, .reserved_peak_bytes, .device_peak_bytes     over the timed steady steps, rank 0
//   measured.step_time_s                                                        a number, or {"median": ...}
//   measured.phases.PHASE.allocated_bytes_at_end, .allocated_peak_bytes, .reserved_bytes_at_end
//   measured.phases.PHASE.host_resident_bytes_at_end, .host_resident_peak_bytes, .host_pinned_bytes
//   measured.files_bytes.NAME                                                   of the checkpoint
//
// `phases` and `files_bytes` may stand in the row itself, and their GPU figures may be called gpu_allocated_....  In CSV a
// column's name is the path with dots; the prefix `measured.` may be left out; `model` and `plan` hold JSON or the name of
// a preset or file, and a column plan.KEY states one key of the plan; an empty cell was not measured.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "planner/base/diagnostic.hpp"

namespace plimsoll {

/// A figure and its value: bytes, or seconds for "step_time".
struct Measurement {
  std::string figure;  ///< "allocated_peak", "steady_forward.allocated_end", "file.save_16bit/m.bin"
  double value = 0;
  std::size_t begin = 0, end = 0;  ///< bytes of the table
  std::string pointer;
};

/// One input of a row: the name of a preset or file, or a JSON text within the table.
struct RowText {
  std::string name;                        ///< empty if there is a text
  std::shared_ptr<const SourceFile> text;  ///< the JSON, null if there is a name
  Place place;                             ///< in the table
  bool in_place = false;  ///< lines and columns of `text` are those of the table (JSON; not cells of CSV)

  bool stated() const { return text != nullptr || !name.empty(); }
};

struct MeasuredRow {
  std::string id;
  Place place;
  RowText model, plan, cluster;
  bool is_ds_config = false;      ///< `plan` is a ds_config.json
  std::vector<std::string> sets;  ///< "micro_batch=2": keys of the plan stated by columns of their own
  bool fresh = false;             ///< figures of construction and of the first step are clean
  std::int64_t parameters = 0;    ///< 0: not stated
  std::vector<Measurement> measurements;
};

/// A row, or one of its figures, that cannot be compared.
struct Unanswered {
  std::string id, reason;
};

struct MeasuredTable {
  std::shared_ptr<const SourceFile> file;
  std::vector<MeasuredRow> rows;
  std::vector<Unanswered> unanswered;
  Diagnostics diagnostics;
};

/// Reads a table; what is wrong with a row or a figure is a located diagnostic, and the rest is read all the same.
/// Errors: table.form, .empty, .missing, .type, .unit, .order, .unknown, .repeated, .csv, and those of the JSON reader.
MeasuredTable read_measured_table(const std::shared_ptr<const SourceFile>& file);

/// The same for CSV (RFC 4180).
MeasuredTable read_measured_csv(const std::shared_ptr<const SourceFile>& file);

/// Diagnostics of a row's JSON text, with places that lie in the table.
Diagnostics placed_in_table(Diagnostics diagnostics, const RowText& text);

}  // namespace plimsoll
