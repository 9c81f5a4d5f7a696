// The panel of inputs (gui/widgets/inputs_panel.hpp).
#include "gui/widgets/inputs_panel.hpp"

#include <QComboBox>
#include <QCompleter>
#include <QFileDialog>
#include <QFormLayout>
#include <QLabel>
#include <QLineEdit>
#include <QScrollArea>
#include <QSignalBlocker>
#include <QSpinBox>
#include <QToolButton>
#include <QVBoxLayout>

#include "gui/widgets/control_row.hpp"
#include "planner/spec/devices.hpp"
#include "planner/spec/presets.hpp"

namespace plimsoll::gui {
namespace {

QComboBox* editable_box(const QString& name, QWidget* parent) {
  auto* box = new QComboBox(parent);
  box->setEditable(true);
  box->setInsertPolicy(QComboBox::NoInsert);
  box->setAccessibleName(name);
  box->setSizeAdjustPolicy(QComboBox::AdjustToMinimumContentsLengthWithIcon);
  box->setMinimumContentsLength(12);
  box->completer()->setFilterMode(Qt::MatchContains);
  box->completer()->setCompletionMode(QCompleter::PopupCompletion);
  return box;
}

QToolButton* file_button(const QString& tip, QWidget* parent) {
  auto* button = new QToolButton(parent);
  button->setText(QStringLiteral("…"));
  button->setToolTip(tip);
  button->setAccessibleName(tip);
  return button;
}

QWidget* beside(QWidget* main, QWidget* button) {
  auto* both = new QWidget;
  auto* layout = new QHBoxLayout(both);
  layout->setContentsMargins(0, 0, 0, 0);
  layout->setSpacing(4);
  layout->addWidget(main, 1);
  layout->addWidget(button);
  both->setFocusProxy(main);
  return both;
}

QLabel* label_of(const QString& words, QWidget* buddy) {
  auto* label = new QLabel(words);
  label->setBuddy(buddy);
  return label;
}

QLabel* heading(const QString& words) {
  auto* label = new QLabel(words);
  QFont font = label->font();
  font.setBold(true);
  label->setFont(font);
  label->setContentsMargins(0, 8, 0, 0);
  return label;
}

/// Of another engine than the plan's?
bool concerns(const std::string& key, const std::string& engine) {
  if (key.rfind("zero.stage3", 0) == 0 || key == "zero.reduce_bucket_size" || key.rfind("offload.", 0) == 0)
    return engine == "deepspeed";
  if (key.rfind("zero.", 0) == 0) return engine == "deepspeed" || engine == "plimsoll";
  if (key.rfind("fsdp.", 0) == 0) return engine == "fsdp2";
  if (key == "moe.leaf") return engine == "deepspeed";
  return true;
}

}  // namespace

InputsPanel::InputsPanel(Session& session, QWidget* parent)
    : QWidget(parent),
      session_(session),
      model_(editable_box(tr("Model"), this)),
      cluster_(editable_box(tr("Cluster"), this)),
      nodes_(new QSpinBox(this)),
      plan_(new QLineEdit(this)) {
  auto* content = new QWidget;
  form_ = new QFormLayout(content);
  form_->setLabelAlignment(Qt::AlignRight);
  form_->setFieldGrowthPolicy(QFormLayout::AllNonFixedFieldsGrow);
  form_->setVerticalSpacing(4);
  form_->setContentsMargins(10, 8, 6, 8);
  build_files(form_);
  build_controls(form_);
  auto* scroll = new QScrollArea(this);
  scroll->setWidget(content);
  scroll->setWidgetResizable(true);
  scroll->setFrameShape(QFrame::NoFrame);
  scroll->setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
  scroll->setFocusPolicy(Qt::NoFocus);
  auto* layout = new QVBoxLayout(this);
  layout->setContentsMargins(0, 0, 0, 0);
  layout->addWidget(scroll);
  constexpr int air = 24;  // the scroll bar
  setMinimumWidth(std::max(340, content->minimumSizeHint().width() + air));
  connect(&session_, &Session::text_changed, this, &InputsPanel::show_text);
  connect(&session_, &Session::answered, this, &InputsPanel::show_answer);
  show_text();
}

void InputsPanel::build_files(QFormLayout* form) {
  for (const std::string& name : preset_names("models")) model_->addItem(QString::fromStdString(name));
  for (const std::string& device : device_names()) cluster_->addItem(QString::fromStdString("8x" + device));
  for (const std::string& name : preset_names("clusters")) cluster_->addItem(QString::fromStdString(name));
  nodes_->setRange(0, 4096);
  nodes_->setSpecialValueText(tr("as the cluster says"));
  nodes_->setAccessibleName(tr("Nodes"));
  nodes_->setKeyboardTracking(false);
  plan_->setPlaceholderText(tr("none"));
  plan_->setClearButtonEnabled(true);
  plan_->setToolTip(tr("A plan.json or a ds_config.json; the controls stand over it"));
  plan_->setAccessibleName(tr("Plan file"));
  auto* model_file = file_button(tr("Open a config.json"), this);
  auto* plan_file = file_button(tr("Open a plan.json or ds_config.json"), this);
  form->addRow(label_of(tr("Mo&del"), model_), beside(model_, model_file));
  form->addRow(label_of(tr("C&luster"), cluster_), cluster_);
  form->addRow(label_of(tr("&Nodes"), nodes_), nodes_);
  form->addRow(label_of(tr("Plan file"), plan_), beside(plan_, plan_file));
  model_->setToolTip(tr("A preset, a Hugging Face config.json, or sketch:dense=7B,…"));
  cluster_->setToolTip(tr("N×DEVICE in nodes of 8, or a cluster.json"));
  const auto take_model = [this] { session_.set_model(model_->currentText().trimmed()); };
  const auto take_cluster = [this] { session_.set_cluster(cluster_->currentText().trimmed(), nodes_->value()); };
  connect(model_, &QComboBox::activated, this, take_model);
  connect(model_->lineEdit(), &QLineEdit::editingFinished, this, take_model);
  connect(cluster_, &QComboBox::activated, this, take_cluster);
  connect(cluster_->lineEdit(), &QLineEdit::editingFinished, this, take_cluster);
  connect(model_, &QComboBox::highlighted, this, [this](int index) { session_.expect_model(model_->itemText(index)); });
  connect(cluster_, &QComboBox::highlighted, this,
          [this](int index) { session_.expect_cluster(cluster_->itemText(index), nodes_->value()); });
  connect(nodes_, &QSpinBox::valueChanged, this, take_cluster);
  connect(plan_, &QLineEdit::editingFinished, this, [this] {
    const QString path = plan_->text().trimmed();
    if (path.toStdString() != session_.text().plan_file) session_.set_plan_file(path);
  });
  connect(model_file, &QToolButton::clicked, this, [this] {
    const QString path =
        QFileDialog::getOpenFileName(this, tr("Open a model"), {}, tr("config.json (*.json);;All files (*)"));
    if (!path.isEmpty()) session_.set_model(path);
  });
  connect(plan_file, &QToolButton::clicked, this, &InputsPanel::choose_plan_file);
}

void InputsPanel::choose_plan_file() {
  const QString path = QFileDialog::getOpenFileName(this, tr("Open a plan"), {},
                                                    tr("plan.json or ds_config.json (*.json);;All files (*)"));
  if (!path.isEmpty()) session_.set_plan_file(path);
}

void InputsPanel::build_controls(QFormLayout* form) {
  std::string group;
  for (const Control& control : controls()) {
    if (control.group != group) form->addRow(heading(QString::fromStdString(control.group)));
    group = control.group;
    auto* row = new ControlRow(control, this);
    rows_[control.key] = row;
    QLabel* label = label_of(QString::fromStdString(control.label), row->entry());
    label->setToolTip(QString::fromStdString(control.term));
    form->addRow(label, row);
    connect(row, &ControlRow::chosen, &session_, &Session::set);
    connect(row, &ControlRow::given_back, &session_, &Session::unset);
    connect(row, &ControlRow::touched, &session_, &Session::expect);
    connect(row, &ControlRow::refused, this, &InputsPanel::refused);
  }
}

void InputsPanel::show_text() {
  const ScenarioText& text = session_.text();
  const QSignalBlocker model(model_), cluster(cluster_), nodes(nodes_);
  model_->setCurrentText(QString::fromStdString(text.model));
  cluster_->setCurrentText(QString::fromStdString(text.cluster));
  nodes_->setValue(text.nodes);
  plan_->setText(QString::fromStdString(text.plan_file));
}

void InputsPanel::show_answer() {
  const AnswerPtr& answer = session_.newest();
  for (const auto& [key, state] : answer->controls) {
    const auto found = rows_.find(key);
    if (found != rows_.end()) found->second->show_state(state, answer->settled && !answer->has_errors());
  }
  const auto engine = answer->controls.find("engine");
  if (engine == answer->controls.end()) return;
  for (const auto& [key, row] : rows_) {
    const bool visible = concerns(key, engine->second.value);
    if (visible != row->isVisibleTo(this)) form_->setRowVisible(row, visible);
  }
}

ControlRow* InputsPanel::row(const QString& key) const {
  const auto found = rows_.find(key.toStdString());
  return found == rows_.end() ? nullptr : found->second;
}

bool InputsPanel::focus_key(const QString& key) {
  ControlRow* found = row(key);
  if (found == nullptr) return false;
  found->entry()->setFocus(Qt::ShortcutFocusReason);
  return true;
}

}  // namespace plimsoll::gui
