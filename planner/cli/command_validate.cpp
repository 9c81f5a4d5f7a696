// plimsoll validate: how far are the predictions from tables of measured runs?
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <set>

#include "planner/base/format.hpp"
#include "planner/base/nearest.hpp"
#include "planner/cli/allocator_record.hpp"
#include "planner/cli/commands.hpp"
#include "planner/cli/common_inputs.hpp"
#include "planner/cli/table.hpp"
#include "planner/cli/terminal.hpp"
#include "planner/cli/validation.hpp"
#include "planner/spec/document.hpp"

namespace plimsoll {
namespace {

constexpr std::size_t most_offered = 5;  ///< names of a table instead of one that it does not have

struct ValidateOptions {
  std::vector<std::string> tables;
  std::vector<std::string> figures, rows;
  std::string calibration;
  std::optional<double> within;
  bool json = false, markdown = false, brief = false;
};

std::string percent(double error) { return fmt::format("{:+.3f} %", 100 * error); }
std::string percent_unsigned(double error) { return fmt::format("{:.3f} %", 100 * error); }

std::string value_in_words(const Comparison& row, double value) {
  return row.is_time() ? fmt::format("{:.2f} ms", 1e3 * value) : format_count(static_cast<std::int64_t>(value));
}

std::string error_in_colour(const Comparison& row, const std::optional<double>& within) {
  const bool beyond = within && std::abs(row.error) > *within;
  return paint(percent(row.error), beyond ? Colour::red : Colour::none);
}

void print_rows(const Validation& validation, const std::optional<double>& within) {
  std::string id;
  Table table({{"row"},
               {"figure"},
               {"predicted", Align::right},
               {"measured", Align::right},
               {"difference", Align::right},
               {"error", Align::right},
               {""}});
  const auto add = [&](const Comparison& row, const char* note) {
    table.row({row.id == id ? "" : row.id, row.figure, value_in_words(row, row.predicted),
               value_in_words(row, row.measured), value_in_words(row, row.predicted - row.measured),
               error_in_colour(row, within), note});
    id = row.id;
  };
  for (const Comparison& row : validation.rows) add(row, "");
  for (const Comparison& row : validation.apart) {
    add(row, row.within().value_or(true) ? "given routing" : "given routing; outside the interval");
  }
  if (!table.empty()) print(table.text() + "\n");
}

void print_summary(const std::vector<FigureSummary>& summaries) {
  Table table({{"figure"},
               {"n", Align::right},
               {"mean", Align::right},
               {"worst", Align::right},
               {"bias", Align::right},
               {"worst row"}});
  for (const FigureSummary& summary : summaries) {
    table.row({summary.figure, fmt::format("{}", summary.n), percent_unsigned(summary.mean),
               percent_unsigned(summary.max), percent(summary.bias), summary.worst});
  }
  if (!table.empty()) print(table.text() + "\n");
}

/// What a table's measured routing leaves out; empty if nothing.
std::string without_first_steps(const Validation& validation) {
  if (validation.first_steps == 0) return {};
  return fmt::format(
      "Not compared: {} of first steps of rows with a given routing (AutoEP among them), which is that of the "
      "steady step\n",
      counted(static_cast<std::int64_t>(validation.first_steps), "figure"));
}

void print_text(const Validation& validation, const ValidateOptions& options) {
  if (!options.brief) print_rows(validation, options.within);
  if (!options.brief) print_summary(summaries_by_figure(validation.rows));
  print_summary(summaries_by_kind(validation.rows));
  if (!validation.apart.empty()) {
    const auto inside = std::count_if(validation.apart.begin(), validation.apart.end(),
                                      [](const Comparison& row) { return row.within().value_or(false); });
    const auto stated = std::count_if(validation.apart.begin(), validation.apart.end(),
                                      [](const Comparison& row) { return row.interval.has_value(); });
    print(
        fmt::format("Reserved and device memory of rows with a given routing, which hang on earlier steps' routing: "
                    "{} of {} measured peaks lie within the stated interval\n",
                    inside, stated));
  }
  print(without_first_steps(validation));
  std::set<std::string> ids;
  for (const Comparison& row : validation.rows) ids.insert(row.id);
  print(fmt::format("{} compared, {}; {} unanswered\n", counted(std::ssize(ids), "row"),
                    counted(std::ssize(validation.rows) + std::ssize(validation.apart), "figure"),
                    validation.unanswered.size()));
  Table table({{""}, {""}});
  for (const Unanswered& row : validation.unanswered) table.row({row.id, row.reason});
  if (!table.empty()) print(table.text(2));
}

/// A cell of a Markdown table: bars would end it.
std::string cell(std::string text) {
  for (std::size_t at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2)) text.insert(at, "\\");
  return text;
}

void print_markdown(const Validation& validation) {
  std::string out = "| figure | compared | mean error | worst | bias | worst row |\n|---|---:|---:|---:|---:|---|\n";
  for (const FigureSummary& summary : summaries_by_kind(validation.rows)) {
    out += fmt::format("| {} | {} | {} | {} | {} | {} |\n", summary.figure, summary.n, percent_unsigned(summary.mean),
                       percent_unsigned(summary.max), percent(summary.bias), cell(summary.worst));
  }
  out +=
      "\n| row | allocated peak, GiB | error | reserved peak, GiB | error | device peak, GiB | error | step, ms | "
      "error |\n"
      "|---|---:|---:|---:|---:|---:|---:|---:|---:|\n";
  std::vector<std::string> ids;
  for (const Comparison& row : validation.rows) {
    if (ids.empty() || ids.back() != row.id) ids.push_back(row.id);
  }
  for (const std::string& id : ids) {
    out += fmt::format("| {} |", cell(id));
    for (const char* figure : {"allocated_peak", "reserved_peak", "device_peak", "step_time"}) {
      const auto is_it = [&](const Comparison& row) { return row.id == id && row.figure == figure; };
      auto found = std::find_if(validation.rows.begin(), validation.rows.end(), is_it);
      const bool apart = found == validation.rows.end();
      if (apart) found = std::find_if(validation.apart.begin(), validation.apart.end(), is_it);
      if (found == (apart ? validation.apart.end() : validation.rows.end())) {
        out += "  |  |";
        continue;
      }
      const double unit = found->is_time() ? 1e-3 : static_cast<double>(1 << 30);
      out += fmt::format(" {:.2f} | {}{} |", found->measured / unit, percent(found->error), apart ? " *" : "");
    }
    out += "\n";
  }
  if (!validation.apart.empty()) out += "\n\\* routing given: hangs on earlier steps' routing, not in the means\n";
  if (validation.first_steps > 0) out += "\n" + without_first_steps(validation);
  if (!validation.unanswered.empty()) out += "\n| not answered | why |\n|---|---|\n";
  for (const Unanswered& row : validation.unanswered)
    out += fmt::format("| {} | {} |\n", cell(row.id), cell(row.reason));
  print(out);
}

bool matches(const std::vector<std::string>& parts, const std::string& text) {
  return parts.empty() || std::any_of(parts.begin(), parts.end(),
                                      [&](const std::string& part) { return text.find(part) != std::string::npos; });
}

/// A text that none of the names holds is told with those that hold something most like it.
void check_choice(const char* option, const std::vector<std::string>& parts, const std::set<std::string>& names,
                  Diagnostics& wrong) {
  for (const std::string& part : parts) {
    const auto holds = [&](const std::string& name) { return name.find(part) != std::string::npos; };
    if (std::any_of(names.begin(), names.end(), holds)) continue;
    const std::vector<std::string> known(names.begin(), names.end());
    const auto near = nearest(part, known);
    wrong.push_back(
        make_error("cli.choice", fmt::format("{} {} is in none of the tables", option, part),
                   near ? fmt::format("did you mean {}?", *near)
                        : fmt::format("nearest are: {}", fmt::join(nearest_parts(part, known, most_offered), ", "))));
  }
}

/// Leaves what the options choose.
void choose(const ValidateOptions& options, MeasuredTable& table) {
  std::erase_if(table.rows, [&](const MeasuredRow& row) { return !matches(options.rows, row.id); });
  std::erase_if(table.unanswered, [&](const Unanswered& row) { return !matches(options.rows, row.id); });
  for (MeasuredRow& row : table.rows)
    std::erase_if(row.measurements, [&](const Measurement& m) { return !matches(options.figures, m.figure); });
}

int validate(const ValidateOptions& options) {
  std::vector<MeasuredTable> tables;
  std::set<std::string> ids, figures;
  Diagnostics wrong;
  for (const std::string& path : options.tables) {
    const auto file = load_unpacked(path, document_size_limit);
    if (!file) return refuse(file.diagnostics(), options.json);
    const MeasuredTable& table = tables.emplace_back(read_measured_table(*file));
    wrong.insert(wrong.end(), table.diagnostics.begin(), table.diagnostics.end());
    for (const Unanswered& row : table.unanswered) ids.insert(row.id);
    for (const MeasuredRow& row : table.rows) {
      ids.insert(row.id);
      for (const Measurement& measurement : row.measurements) figures.insert(measurement.figure);
    }
  }
  if (ids.empty() && has_errors(wrong)) return refuse(wrong, options.json);  // no table at all
  wrong.clear();
  check_choice("--row", options.rows, ids, wrong);
  check_choice("--figure", options.figures, figures, wrong);
  if (!wrong.empty()) return refuse(wrong, options.json);
  for (MeasuredTable& table : tables) choose(options, table);
  const Validation validation = validate(std::move(tables), options.calibration);
  print_diagnostics(validation.diagnostics);
  std::optional<double> within;
  if (options.within) within = *options.within / 100;
  if (options.json) {
    print(validation_json(validation));
  } else if (options.markdown) {
    print_markdown(validation);
  } else {
    print_text(validation, options);
  }
  if (has_errors(validation.diagnostics) && validation.rows.empty()) return exit_code::input;
  if (within && validation.rows.empty()) {
    finish_output();
    fmt::print(stderr, "plimsoll validate: --within {:g}: there is no figure whose error could be judged\n",
               *options.within);
    return exit_code::beyond;
  }
  const bool beyond = within && std::any_of(validation.rows.begin(), validation.rows.end(),
                                            [&](const Comparison& row) { return std::abs(row.error) > *within; });
  if (beyond) return exit_code::beyond;
  return has_errors(validation.diagnostics) ? exit_code::input : exit_code::ok;
}

}  // namespace

std::function<int()> declare_validate(CLI::App& app) {
  auto options = std::make_shared<ValidateOptions>();
  app.add_option("TABLE", options->tables, "tables of measured runs, JSON or CSV, also compressed by gzip")->required();
  app.add_option("--row", options->rows, "only rows whose id holds this text; repeatable")
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--figure", options->figures, "only figures whose name holds this text; repeatable")
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--within", options->within,
                 "exit with 5 if an error is beyond this many percent, or there is none to judge")
      ->type_name("PERCENT")
      ->check(number_from(0, 1e9));
  app.add_option("--calibration", options->calibration, "a calibration.json or a preset; default: each cluster's");
  app.add_flag("--brief", options->brief, "the summary alone");
  auto* json = app.add_flag("--json", options->json, "one JSON object on standard output");
  app.add_flag("--markdown", options->markdown, "tables as the documentation prints them")->excludes(json);
  return [options] { return validate(*options); };
}

}  // namespace plimsoll
