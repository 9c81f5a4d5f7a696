// Edits, answers and their order (gui/session/session.hpp).
#include "gui/session/session.hpp"

#include <QFile>
#include <QMetaObject>
#include <array>

#include "planner/base/machine_error.hpp"
#include "planner/spec/document.hpp"

namespace plimsoll::gui {
namespace {

/// From the first edit that is not saved yet, so that a drag is saved while it goes on.
constexpr int autosave_delay_ms = 50;
/// Edits of one key that follow each other faster are one step of the history.
constexpr qint64 one_drag_ms = 800;

/// Delivers an answer from the evaluator's thread to the session's.
template <class Take>
std::function<void(AnswerPtr)> to_thread_of(QObject* session, Take take) {
  return [session, take](AnswerPtr answer) {
    QMetaObject::invokeMethod(
        session, [take, answer = std::move(answer)] { take(answer); }, Qt::QueuedConnection);
  };
}

/// In the list of a control's values; its end for a value that is not in it.
std::size_t place_of(const Control& control, const std::string& value) {
  const auto& values = control.values;
  return static_cast<std::size_t>(std::find(values.begin(), values.end(), value) - values.begin());
}

bool has_any(const Document& document, std::initializer_list<const char*> keys) {
  return std::any_of(keys.begin(), keys.end(), [&](const char* key) { return document.root().find(key) != nullptr; });
}

}  // namespace

Session::Session(const SessionState& state, QString autosave, QObject* parent)
    : QObject(parent),
      tab(state.tab),
      history_(state.scenario),
      autosave_(std::move(autosave)),
      compared_(state.compared),
      compared_evaluator_(to_thread_of(this,
                                       [this](const AnswerPtr& answer) {
                                         compared_answer_ = answer;
                                         Q_EMIT compared_changed();
                                       })),
      evaluator_(to_thread_of(this, [this](const AnswerPtr& answer) { take(answer); })) {
  autosave_timer_.setSingleShot(true);
  autosave_timer_.setInterval(autosave_delay_ms);
  connect(&autosave_timer_, &QTimer::timeout, this, [this] { save_session(this->state(), autosave_); });
  ask();
  evaluate_compared();
}

Session::~Session() = default;

bool Session::is_stale() const { return !good_ || good_->generation != generation_; }

SessionState Session::state() const { return {text(), compared_, tab}; }

void Session::edit(ScenarioText text, const QString& key, bool merge) {
  if (text == history_.now()) return;
  last_key_ = key;
  const bool follows = since_edit_.isValid() && since_edit_.elapsed() < one_drag_ms;
  since_edit_.start();
  history_.edit(std::move(text), key.toStdString(), merge && follows);
  ask();
  Q_EMIT text_changed();
}

void Session::ask() {
  generation_ = evaluator_.ask(text());
  if (!autosave_.isEmpty() && !autosave_timer_.isActive()) autosave_timer_.start();
}

void Session::take(const AnswerPtr& answer) {
  if (answer->generation != generation_) return;  // an edit came after it was sent
  newest_ = answer;
  if (!answer->has_errors()) good_ = answer;
  Q_EMIT answered();
  expect(last_key_);
}

void Session::set(const QString& key, const QString& value) {
  if (const Control* control = find_control(key.toStdString()); control != nullptr && good_)
    upwards_ = place_of(*control, value.toStdString()) >= place_of(*control, good_->controls.at(control->key).value);
  ScenarioText text = this->text();
  text.settings[key.toStdString()] = value.toStdString();
  edit(std::move(text), key, true);
}

void Session::expect(const QString& key) {
  if (is_stale()) return;
  std::vector<ScenarioText> likely;
  /// Adds the stops of a control that are at most so far away, the nearest first.
  const auto add_stops = [&](const Control& control, std::size_t reach, bool both_ways) {
    const ControlState& state = good_->controls.at(control.key);
    const std::size_t stops = control.values.size(), at = place_of(control, state.value);
    if (at == stops) return;
    const auto add = [&](std::size_t index) {
      // A value that is not legal is told quickly, so that until the answer settles all are tried.
      if (index >= stops || !state.refused[index].empty()) return;
      likely.push_back(text());
      likely.back().settings[control.key] = control.values[index];
    };
    for (std::size_t far = 1; far <= std::min(reach, stops); ++far) {
      add(upwards_ ? at + far : at - far);
      if (both_ways) add(upwards_ ? at - far : at + far);
    }
  };
  // Until the answer is whole its own figures come first, and a hand goes on as it went.
  const bool whole = good_->remedy_known;
  const Control* under_the_hand = find_control(key.toStdString());
  if (under_the_hand != nullptr) add_stops(*under_the_hand, whole ? under_the_hand->values.size() : 1, whole);
  for (const Control& control : controls())
    if (whole && &control != under_the_hand) add_stops(control, 1, true);
  if (!likely.empty()) evaluator_.prepare(std::move(likely));
}

void Session::unset(const QString& key) {
  ScenarioText text = this->text();
  text.settings.erase(key.toStdString());
  edit(std::move(text), key, false);
}

ScenarioText Session::with_model(const QString& model) const {
  ScenarioText text = this->text();
  text.model = model.toStdString();
  return text;
}

ScenarioText Session::with_cluster(const QString& cluster, int nodes) const {
  ScenarioText text = this->text();
  text.cluster = cluster.toStdString();
  text.nodes = nodes;
  text.settings.erase("world_size");  // all GPUs of the new one
  return text;
}

void Session::set_model(const QString& model) { edit(with_model(model), "model", false); }

void Session::set_cluster(const QString& cluster, int nodes) { edit(with_cluster(cluster, nodes), "cluster", true); }

void Session::expect_model(const QString& model) { evaluator_.prepare({with_model(model)}); }

void Session::expect_cluster(const QString& cluster, int nodes) { evaluator_.prepare({with_cluster(cluster, nodes)}); }

void Session::set_plan_file(const QString& path) {
  ScenarioText text = this->text();
  text.plan_file = path.toStdString();
  text.is_ds_config = !path.isEmpty() && kind_of_file(path) == FileKind::ds_config;
  text.settings.clear();
  edit(std::move(text), "plan", false);
}

void Session::set_text(const ScenarioText& text, const QString& key) { edit(text, key, false); }

QString Session::open_any(const QString& path) {
  switch (kind_of_file(path)) {
    case FileKind::model: set_model(path); return tr("model");
    case FileKind::cluster: set_cluster(path, 0); return tr("cluster");
    case FileKind::plan: set_plan_file(path); return tr("plan");
    case FileKind::ds_config: set_plan_file(path); return tr("DeepSpeed configuration");
    case FileKind::session: return open_saved(path) ? tr("session") : QString();
    case FileKind::unknown:
      if (path.endsWith(".plimsoll")) return open_saved(path) ? tr("session") : QString();
      break;
  }
  // Broken files are shown as what their name says, so that the problems say where they are broken.
  if (path.contains("cluster")) {
    set_cluster(path, 0);
  } else if (path.contains("plan") || path.contains("ds_config")) {
    set_plan_file(path);
  } else {
    set_model(path);
  }
  return {};
}

bool Session::open_saved(const QString& path) {
  QString error;
  const auto state = open_session(path, &error);
  if (state) {
    restore(*state);
    return true;
  }
  Diagnostics problems;
  try {  // where its JSON breaks, if it does
    problems = parse_document(load_source(path.toStdString()), Syntax::json).diagnostics();
  } catch (const MachineError&) {  // open_session has said so
  }
  if (!has_errors(problems)) problems.push_back(make_error("session", error.toStdString()));
  Q_EMIT refused(problems);
  return false;
}

void Session::restore(const SessionState& state) {
  tab = state.tab;
  compared_ = state.compared;
  compared_answer_ = nullptr;
  evaluate_compared();
  Q_EMIT compared_changed();
  edit(state.scenario, "session", false);
}

void Session::undo() {
  if (!can_undo()) return;
  history_.undo();
  ask();
  Q_EMIT text_changed();
}

void Session::redo() {
  if (!can_redo()) return;
  history_.redo();
  ask();
  Q_EMIT text_changed();
}

void Session::reload() {
  evaluator_.forget();
  ask();
  Q_EMIT text_changed();
}

void Session::compare_with_now() {
  compared_ = text();
  compared_answer_ = nullptr;
  evaluate_compared();
  Q_EMIT compared_changed();
}

void Session::stop_comparing() {
  compared_.reset();
  compared_answer_ = nullptr;
  Q_EMIT compared_changed();
}

void Session::swap_with_compared() {
  if (!compared_) return;
  const ScenarioText other = *compared_;
  compare_with_now();
  edit(other, "swap", false);
}

void Session::evaluate_compared() {
  if (compared_) compared_evaluator_.ask(*compared_);
}

FileKind kind_of_file(const QString& path) {
  try {
    const auto file = load_source(path.toStdString());
    const auto document = parse_document(file, Syntax::hjson);
    if (!document || !document->root().is_object()) return FileKind::unknown;
    if (has_any(*document, {"plimsoll_session"})) return FileKind::session;
    if (has_any(*document, {"model_type", "architectures", "num_hidden_layers", "hidden_size"})) return FileKind::model;
    if (has_any(*document, {"zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu",
                            "gradient_accumulation_steps", "bf16", "fp16"}))
      return FileKind::ds_config;
    if (has_any(*document, {"device", "devices_per_node", "nodes"})) return FileKind::cluster;
    if (has_any(*document, {"engine", "zero", "world_size", "micro_batch", "expert_parallel", "sequence", "fsdp"}))
      return FileKind::plan;
  } catch (const MachineError&) {
    return FileKind::unknown;
  }
  return FileKind::unknown;
}

}  // namespace plimsoll::gui
