// One key of the plan as a control: a list to choose from, or a slider over the usual values beside a field for any other.
#pragma once

#include <QWidget>

#include "gui/session/controls.hpp"

class QComboBox;
class QLineEdit;
class QSlider;
class QToolButton;

namespace plimsoll::gui {

class ControlRow : public QWidget {
  Q_OBJECT
 public:
  explicit ControlRow(const Control& control, QWidget* parent = nullptr);

  const Control& control() const { return control_; }
  /// @param know_reasons false: what is refused stays as it was known
  void show_state(const ControlState& state, bool know_reasons);
  /// Where the keyboard goes.
  QWidget* entry() const;
  QSlider* slider() const { return slider_; }
  QComboBox* box() const { return box_; }

 Q_SIGNALS:
  void chosen(const QString& key, const QString& value);
  void given_back(const QString& key);  ///< to the default
  void refused(const QString& words);
  void touched(const QString& key);  ///< it has the keyboard or is under the mouse

 protected:
  bool eventFilter(QObject* watched, QEvent* event) override;

 private:
  void build_choice();
  void build_number();
  void slide(int index);
  int index_of(const std::string& value) const;
  int nearest_stop(const std::string& value) const;
  QString reason(int index) const;

  const Control& control_;
  ControlState state_;
  QComboBox* box_ = nullptr;
  QSlider* slider_ = nullptr;
  QLineEdit* field_ = nullptr;
  QToolButton* back_;
  int stop_ = 0;  ///< where the slider stands
};

}  // namespace plimsoll::gui
