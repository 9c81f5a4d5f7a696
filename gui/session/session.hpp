// What does the window show, and what happens when the user edits?  The session holds the scenario's text with its history,
// the last good answer, and the diagnostics of the newest edit; an edit starts the evaluator, and answers that a newer edit
// has overtaken never arrive.  It knows no widgets.
#pragma once

#include <QElapsedTimer>
#include <QObject>
#include <QStringList>
#include <QTimer>
#include <memory>

#include "gui/session/evaluator.hpp"
#include "gui/session/history.hpp"
#include "gui/session/session_file.hpp"

namespace plimsoll::gui {

class Session : public QObject {
  Q_OBJECT
 public:
  /// @param autosave where edits are saved at once; empty: nowhere
  Session(const SessionState& state, QString autosave, QObject* parent = nullptr);
  ~Session() override;

  const ScenarioText& text() const { return history_.now(); }
  /// The newest answer without errors; null before the first.
  const AnswerPtr& good() const { return good_; }
  /// The newest answer, which may have errors.
  const AnswerPtr& newest() const { return newest_; }
  /// True while what good() shows is not of the text as it stands.
  bool is_stale() const;
  bool can_undo() const { return history_.can_undo(); }
  bool can_redo() const { return history_.can_redo(); }
  EvaluatorCounts counts() const { return evaluator_.counts(); }

  /// Plan B: its text and, once evaluated, its whole answer.
  const std::optional<ScenarioText>& compared() const { return compared_; }
  const AnswerPtr& compared_answer() const { return compared_answer_; }

  SessionState state() const;
  int tab = 0;  ///< saved with the session

 public Q_SLOTS:
  void set(const QString& key, const QString& value);
  /// Back to the file's value, or the default.
  void unset(const QString& key);
  void set_model(const QString& model);
  void set_cluster(const QString& cluster, int nodes);
  /// A plan.json or a ds_config.json, told apart by its keys; settings made before are dropped.  Empty: none.
  void set_plan_file(const QString& path);
  void set_text(const ScenarioText& text, const QString& key = {});
  /// A file of any kind: a model, a cluster, a plan, or a session.  @return what it was taken for; "" if for nothing
  QString open_any(const QString& path);
  void restore(const SessionState& state);
  void undo();
  void redo();
  /// An edit of this key is likely: its values are looked at ahead, the nearest first, in the direction of the last move; then
  /// the neighbours of the other controls' values.
  void expect(const QString& key);
  /// This model, or this cluster, is under the hand.
  void expect_model(const QString& model);
  void expect_cluster(const QString& cluster, int nodes);
  /// Asks again, with files read anew.
  void reload();
  void compare_with_now();  ///< the text as it stands becomes plan B
  void stop_comparing();
  void swap_with_compared();

 Q_SIGNALS:
  void text_changed();
  void answered();  ///< newest() and perhaps good() changed
  void compared_changed();
  void refused(const Diagnostics& problems);  ///< of a session's file that cannot be opened; nothing else has changed

 private:
  ScenarioText with_model(const QString& model) const;
  ScenarioText with_cluster(const QString& cluster, int nodes) const;
  void edit(ScenarioText text, const QString& key, bool merge);
  void ask();
  void take(const AnswerPtr& answer);
  void evaluate_compared();
  bool open_saved(const QString& path);

  History history_;
  QString autosave_;
  QTimer autosave_timer_;
  QElapsedTimer since_edit_;
  AnswerPtr good_, newest_;
  std::uint64_t generation_ = 0;
  QString last_key_;     ///< of the last edit
  bool upwards_ = true;  ///< the last edit went on in its control's list of values
  std::optional<ScenarioText> compared_;
  AnswerPtr compared_answer_;
  Evaluator compared_evaluator_;
  Evaluator evaluator_;
};

/// Which kind of file is it?  By its keys, not its name.
enum class FileKind { unknown, model, cluster, plan, ds_config, session };
FileKind kind_of_file(const QString& path);

}  // namespace plimsoll::gui
