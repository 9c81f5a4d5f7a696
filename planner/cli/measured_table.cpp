// Reading a table of measured runs from JSON (planner/cli/measured_table.hpp).
#include "planner/cli/measured_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "planner/base/format.hpp"
#include "planner/cli/measured_figures.hpp"
#include "planner/spec/document.hpp"

namespace plimsoll {
namespace {

constexpr const char* row_help = "rows are objects with id, cluster, model, plan and measured";

struct Span {
  std::size_t begin = 0, end = 0;
};

Span span_of(const Node& node, const SourceFile& file) {
  const std::string_view source = node.source();
  const auto begin = static_cast<std::size_t>(source.data() - file.text.data());
  return {begin, begin + source.size()};
}

RawValue raw_value(const Node& node, const SourceFile& file) {
  RawValue raw;
  if (node.kind() == Node::Kind::integer) {
    raw.kind = RawValue::Kind::integer;
    raw.value = static_cast<double>(node.as_int());
  } else if (node.is_number()) {
    raw.kind = RawValue::Kind::number;
    raw.value = node.as_double();
  } else if (node.is_string()) {
    raw.kind = RawValue::Kind::text;
    raw.text = node.as_string();
  }
  const Span span = span_of(node, file);
  raw.begin = span.begin;
  raw.end = span.end;
  raw.pointer = node.pointer();
  return raw;
}

/// The text of a value, moved to the line and column where it stands, so that a reader's places hold in the table too.
std::shared_ptr<const SourceFile> text_of(const Node& node) {
  const Place place = node.place();
  auto file = std::make_shared<SourceFile>();
  file->name = place.file->name;
  file->text.assign(static_cast<std::size_t>(place.line - 1), '\n');
  file->text.append(static_cast<std::size_t>(place.column - 1), ' ');
  file->text += node.source();
  return file;
}

class TableReader {
 public:
  TableReader(MeasuredTable& table, const Document& document) : table_(table), document_(document), figures_(table) {}

  void read() {
    const Node& root = document_.root();
    const Node* rows = root.is_array() ? &root : root.find("rows");
    if (rows == nullptr || !rows->is_array()) {
      error(root, {}, "table.form", "this is no table of measured runs: it has no array \"rows\"", row_help);
      return;
    }
    if (rows->items().empty()) error(*rows, {}, "table.empty", "the table holds no rows", row_help);
    for (std::size_t i = 0; i < rows->items().size(); ++i) read_row(*rows->items()[i], i);
  }

 private:
  void error(const Node& node, const std::string& id, const char* code, std::string message, std::string help) {
    Diagnostic diagnostic;
    diagnostic.code = code;
    diagnostic.place = node.place();
    diagnostic.message = id.empty() ? message : fmt::format("row {}: {}", id, message);
    diagnostic.help = std::move(help);
    if (!id.empty()) table_.unanswered.push_back({id, std::move(message)});
    table_.diagnostics.push_back(std::move(diagnostic));
  }

  void read_row(const Node& node, std::size_t index) {
    MeasuredRow row;
    const Node* id = node.find("id");
    row.id = id != nullptr && id->is_string() ? id->as_string() : fmt::format("rows[{}]", index);
    row.place = node.place();
    if (!node.is_object()) {
      error(node, row.id, "table.type", fmt::format("a row is an object, and this is {}", node.kind_in_words()), {});
      return;
    }
    warn_of_slips(node, row.id);
    const bool inputs = read_inputs(node, row);
    read_notes(node, row);
    if (const Node* measured = node.find("measured")) read_measured(*measured, row);
    for (const char* key : {"phases", "files_bytes"}) {
      if (const Node* part = node.find(key); part != nullptr && part->is_object()) walk(*part, key, row);
    }
    figures_.check_order(row);
    if (!inputs) return;
    if (row.measurements.empty()) {
      error(node, row.id, "table.missing", "nothing is measured that could be compared",
            "columns: measured.allocated_peak_bytes, measured.phases, ...");
    } else {
      table_.rows.push_back(std::move(row));
    }
  }

  /// Model, plan and cluster; false if one of them is missing or of a wrong type.
  bool read_inputs(const Node& node, MeasuredRow& row) {
    const bool has_plan = node.find("plan") != nullptr;
    row.is_ds_config = !has_plan && node.find("ds_config") != nullptr;
    missing_.clear();
    const bool model = read_text(node, "model", row, row.model);
    const bool plan = read_text(node, row.is_ds_config ? "ds_config" : "plan", row, row.plan);
    const bool cluster = read_text(node, "cluster", row, row.cluster);
    if (!missing_.empty())
      error(node, row.id, "table.missing", fmt::format("what is missing: {}", missing_),
            "a row states model, plan (or ds_config) and cluster");
    return model && plan && cluster;
  }

  bool read_text(const Node& node, const char* key, const MeasuredRow& row, RowText& text) {
    const Node* value = node.find(key);
    if (value == nullptr || value->is_null()) {
      missing_ += (missing_.empty() ? "" : ", ") + std::string(key);
      return false;
    }
    text.place = value->place();
    if (value->is_string()) {
      text.name = value->as_string();
    } else if (value->is_object()) {
      text.text = text_of(*value);
      text.in_place = true;
    }
    if (text.stated()) return true;
    error(*value, row.id, "table.type", fmt::format("{} is {}", key, value->kind_in_words()),
          "an object, or the name of a preset or file");
    return false;
  }

  void read_notes(const Node& node, MeasuredRow& row) {
    if (const Node* process = node.find("process")) {
      row.fresh = process->is_string() && process->as_string() == "fresh";
      if (!row.fresh && !(process->is_string() && process->as_string() == "shared"))
        error(*process, row.id, "table.choice", R"(process is neither "fresh" nor "shared")", {});
    }
    const Node* parameters = node.find("parameters");
    if (parameters != nullptr && parameters->kind() == Node::Kind::integer) row.parameters = parameters->as_int();
  }

  void read_measured(const Node& measured, MeasuredRow& row) {
    if (measured.is_object()) {
      walk(measured, {}, row);
    } else {
      error(measured, row.id, "table.type", fmt::format("measured is {}", measured.kind_in_words()), "an object");
    }
  }

  void walk(const Node& object, const std::string& path, MeasuredRow& row) {
    for (const Node::Member& member : object.members()) {
      const std::string inner = path.empty() ? member.key : path + "." + member.key;
      if (member.value->is_null()) continue;
      if (member.value->is_object()) {
        walk(*member.value, inner, row);
      } else {
        figures_.take(row, inner, raw_value(*member.value, document_.file()));
      }
    }
  }

  /// A key that is nearly one of ours; others are the user's own columns.
  void warn_of_slips(const Node& node, const std::string& id) {
    static const std::vector<std::string> known = {"id",       "cluster",    "model",    "plan",   "ds_config",
                                                   "process",  "parameters", "measured", "phases", "files_bytes",
                                                   "built_on", "errors",     "notes",    "source"};
    for (const Node::Member& member : node.members()) {
      if (std::find(known.begin(), known.end(), member.key) != known.end()) continue;
      const auto near = nearest(member.key, known);
      if (!near || node.find(*near) != nullptr) continue;
      Diagnostic diagnostic;
      diagnostic.severity = Severity::warning;
      diagnostic.code = "table.unknown";
      diagnostic.place = member.value->key_place();
      diagnostic.message = fmt::format("row {}: there is no column {}", id, member.key);
      diagnostic.help = fmt::format("did you mean {}?", *near);
      table_.diagnostics.push_back(std::move(diagnostic));
    }
  }

  MeasuredTable& table_;
  const Document& document_;
  FigureReader figures_;
  std::string missing_;  ///< inputs that the row at hand lacks
};

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

/// Of rows with one id the first counts.
void leave_out_repeated(MeasuredTable& table) {
  std::map<std::string, Place> first;
  std::vector<MeasuredRow> rows;
  for (MeasuredRow& row : table.rows) {
    const auto [known, added] = first.try_emplace(row.id, row.place);
    if (added) {
      rows.push_back(std::move(row));
      continue;
    }
    Diagnostic diagnostic;
    diagnostic.code = "table.repeated";
    diagnostic.place = row.place;
    diagnostic.message = fmt::format("row {}: another row has this id; it is left out", row.id);
    diagnostic.notes.push_back({known->second, "the row that counts"});
    table.unanswered.push_back({row.id, "another row has this id"});
    table.diagnostics.push_back(std::move(diagnostic));
  }
  table.rows = std::move(rows);
}

}  // namespace

MeasuredTable read_measured_table(const std::shared_ptr<const SourceFile>& file) {
  MeasuredTable table;
  if (ends_with(file->name, ".csv") || ends_with(file->name, ".csv.gz")) {
    table = read_measured_csv(file);
  } else {
    table.file = file;
    const auto document = parse_document(file);
    table.diagnostics = document.diagnostics();
    if (document) TableReader(table, *document).read();
  }
  leave_out_repeated(table);
  return table;
}

Diagnostics placed_in_table(Diagnostics diagnostics, const RowText& text) {
  const auto move = [&](Place& place) {
    if (text.text == nullptr || place.file != text.text) return;
    std::string pointer = text.place.pointer + place.pointer;
    if (text.in_place) {
      place.file = text.place.file;
    } else {
      place = text.place;
    }
    place.pointer = std::move(pointer);
  };
  for (Diagnostic& diagnostic : diagnostics) {
    move(diagnostic.place);
    for (Diagnostic::Note& note : diagnostic.notes) move(note.place);
  }
  return diagnostics;
}

}  // namespace plimsoll
