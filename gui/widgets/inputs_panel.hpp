// What is asked, as controls: model, cluster, plan file, and the plan's keys with their legal values.  A value that is not legal
// is greyed or skipped, and says why.
#pragma once

#include <QWidget>
#include <map>

#include "gui/session/session.hpp"

class QComboBox;
class QFormLayout;
class QLabel;
class QLineEdit;
class QSpinBox;
class QToolButton;

namespace plimsoll::gui {

class ControlRow;

class InputsPanel : public QWidget {
  Q_OBJECT
 public:
  explicit InputsPanel(Session& session, QWidget* parent = nullptr);

  /// Puts the keyboard into the control of a plan's key.  @return false if there is none
  bool focus_key(const QString& key);
  ControlRow* row(const QString& key) const;
  QComboBox* model_box() const { return model_; }
  QComboBox* cluster_box() const { return cluster_; }
  QSpinBox* nodes_box() const { return nodes_; }

 Q_SIGNALS:
  void refused(const QString& words);  ///< a value that is not legal was asked for

 private:
  void build_files(QFormLayout* form);
  void build_controls(QFormLayout* form);
  void choose_plan_file();
  void show_text();
  void show_answer();

  Session& session_;
  QComboBox *model_, *cluster_;
  QSpinBox* nodes_;
  QLineEdit* plan_;
  QFormLayout* form_;
  std::map<std::string, ControlRow*> rows_;
};

}  // namespace plimsoll::gui
