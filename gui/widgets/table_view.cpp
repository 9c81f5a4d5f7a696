// Tables on the screen (gui/widgets/table_view.hpp).
#include "gui/widgets/table_view.hpp"

#include <QApplication>
#include <QClipboard>
#include <QContextMenuEvent>
#include <QFileDialog>
#include <QHeaderView>
#include <QKeyEvent>
#include <QMenu>
#include <QPainter>
#include <QSaveFile>
#include <QSortFilterProxyModel>
#include <QStaticText>
#include <QStyledItemDelegate>
#include <QToolTip>
#include <cmath>

#include "gui/widgets/theme.hpp"

namespace plimsoll::gui {
namespace {

/// Paints cells: the swatch of a category before its name, and text whose layout is kept.  Most of a frame's time would be the
/// layout of the same words again and again, which the usual delegate does twice a cell.
class CellDelegate : public QStyledItemDelegate {
 public:
  using QStyledItemDelegate::QStyledItemDelegate;

  void paint(QPainter* painter, const QStyleOptionViewItem& option, const QModelIndex& index) const override {
    constexpr int swatch_size = 12;
    QStyleOptionViewItem cell = option;
    initStyleOption(&cell, index);
    const QStyle* style = cell.widget->style();
    style->drawPrimitive(QStyle::PE_PanelItemViewItem, &cell, painter, cell.widget);
    QRect area = cell.rect.adjusted(air, 0, -air, 0);
    const QString ink = index.column() == 0 ? index.data(TableModel::ink_role).toString() : QString();
    if (!ink.isEmpty()) {
      const QRect square(area.left(), area.center().y() - swatch_size / 2 + 1, swatch_size, swatch_size);
      swatch(ink_of(ink.toStdString(), is_dark(cell.palette)), cell.palette).paint(painter, square);
      area.setLeft(square.right() + air);
    }
    const bool selected = (cell.state & QStyle::State_Selected) != 0;
    painter->setPen(cell.palette.color(selected ? QPalette::HighlightedText : QPalette::Text));
    painter->setFont(cell.font);
    const QStaticText& text = laid_out(cell.text, cell.font);
    const auto width = static_cast<int>(std::ceil(text.size().width()));
    if (width > area.width()) {
      painter->drawText(area, static_cast<int>(cell.displayAlignment),
                        cell.fontMetrics.elidedText(cell.text, Qt::ElideRight, area.width()));
    } else {
      const int x = (cell.displayAlignment & Qt::AlignRight) != 0 ? area.right() + 1 - width : area.left();
      painter->drawStaticText(x, area.top() + (area.height() - cell.fontMetrics.height()) / 2, text);
    }
    if ((cell.state & QStyle::State_HasFocus) == 0) return;
    QStyleOptionFocusRect focus;
    focus.QStyleOption::operator=(cell);
    style->drawPrimitive(QStyle::PE_FrameFocusRect, &focus, painter, cell.widget);
  }

  /// Tells the whole of a text that is cut.
  bool helpEvent(QHelpEvent* event, QAbstractItemView* view, const QStyleOptionViewItem& option,
                 const QModelIndex& index) override {
    const QString words = index.data().toString();
    if (event->type() != QEvent::ToolTip || index.data(Qt::ToolTipRole).isValid() ||
        view->fontMetrics().horizontalAdvance(words) <= option.rect.width() - 2 * air)
      return QStyledItemDelegate::helpEvent(event, view, option, index);
    QToolTip::showText(event->globalPos(), QStringLiteral("<qt>%1</qt>").arg(words.toHtmlEscaped()), view);
    return true;
  }

 private:
  static constexpr int air = 4;

  const QStaticText& laid_out(const QString& words, const QFont& font) const {
    constexpr int most = 4000;
    if (kept_.size() > most) kept_.clear();
    QStaticText& text = kept_[{words, font.bold()}];
    if (text.text().isNull()) {
      text.setTextFormat(Qt::PlainText);
      text.setText(words);
      text.prepare({}, font);
    }
    return text;
  }

  mutable QHash<std::pair<QString, bool>, QStaticText> kept_;
};

}  // namespace

TableView::TableView(const QString& name, QWidget* parent)
    : QTableView(parent), model_(new TableModel(this)), sorted_(new QSortFilterProxyModel(this)) {
  setAccessibleName(name);
  sorted_->setSourceModel(model_);
  sorted_->setSortRole(TableModel::order_role);
  setModel(sorted_);
  setItemDelegate(new CellDelegate(this));
  setShowGrid(false);
  setAlternatingRowColors(true);
  setSelectionBehavior(SelectRows);
  setSelectionMode(ExtendedSelection);
  setEditTriggers(NoEditTriggers);
  setWordWrap(false);
  setTabKeyNavigation(false);
  setHorizontalScrollMode(ScrollPerPixel);
  setFrameShape(QFrame::NoFrame);
  verticalHeader()->hide();
  verticalHeader()->setSectionResizeMode(QHeaderView::Fixed);
  verticalHeader()->setDefaultSectionSize(fontMetrics().height() + 6);
  horizontalHeader()->setHighlightSections(false);
  horizontalHeader()->setDefaultAlignment(Qt::AlignLeft);
  connect(model_, &QAbstractItemModel::modelReset, this, [this] {
    new_form_ = true;
    fit_columns();
    new_form_ = false;
  });
  connect(selectionModel(), &QItemSelectionModel::currentRowChanged, this,
          [this] { Q_EMIT current_row_changed(QString::fromStdString(current_id())); });
  connect(this, &QTableView::activated, this, [this] { Q_EMIT row_activated(QString::fromStdString(current_id())); });
}

void TableView::show_table(TableData table) {
  if (table == model_->table()) return;
  const std::string id = current_id();
  model_->show(std::move(table));
  fit_columns();  // only ever wider, so that nothing jumps while a slider moves
  if (!id.empty() && current_id() != id) select_id(id);
}

std::string TableView::current_id() const {
  const QModelIndex index = currentIndex();
  return index.isValid() ? index.data(TableModel::id_role).toString().toStdString() : std::string();
}

void TableView::select_id(const std::string& id) {
  const QString wanted = QString::fromStdString(id);
  for (int row = 0; row < sorted_->rowCount(); ++row) {
    const QModelIndex index = sorted_->index(row, 0);
    if (index.data(TableModel::id_role).toString() != wanted) continue;
    setCurrentIndex(index);
    return;
  }
}

void TableView::set_sortable(bool sortable) {
  setSortingEnabled(sortable);
  if (sortable) horizontalHeader()->setSortIndicator(-1, Qt::AscendingOrder);  // as it comes
}

/// Measuring text costs more than painting it: only the longest texts of a column are measured, and only where they are longer
/// than what was measured before.
void TableView::fit_columns() {
  constexpr int widest = 560, blanks = 14, swatch_width = 22;
  const std::vector<TableColumn>& columns = model_->table().columns;
  if (new_form_) longest_.assign(columns.size(), 0);
  QFont bold = font();
  bold.setBold(true);
  const QFontMetrics metrics(bold);  // sums are bold
  // A last column of figures stays beside its neighbours.
  horizontalHeader()->setStretchLastSection(!columns.empty() && !columns.back().right);
  for (std::size_t c = 0; c < columns.size(); ++c) {
    std::size_t longest = columns[c].title.size();
    const std::string* text = &columns[c].title;
    for (const TableRow& row : model_->table().rows) {
      if (row.cells[c].text.size() <= longest) continue;
      text = &row.cells[c].text;
      longest = text->size();
    }
    if (longest <= longest_[c]) continue;
    longest_[c] = longest;
    const int width = std::max(metrics.horizontalAdvance(QString::fromStdString(*text)),
                               metrics.horizontalAdvance(QString::fromStdString(columns[c].title)));
    setColumnWidth(static_cast<int>(c), std::min(widest, width + blanks + (c == 0 ? swatch_width : 0)));
  }
}

/// As it stands on the screen: the selected rows, or all.
TableData TableView::shown() const {
  TableData table{model_->table().columns, {}};
  const QModelIndexList selected = selectionModel()->selectedRows();
  for (int row = 0; row < sorted_->rowCount(); ++row) {
    const QModelIndex index = sorted_->index(row, 0);
    if (selected.size() > 1 && !selectionModel()->isRowSelected(row)) continue;
    table.rows.push_back(model_->table().rows[static_cast<std::size_t>(sorted_->mapToSource(index).row())]);
  }
  return table;
}

void TableView::copy_text() const { QApplication::clipboard()->setText(QString::fromStdString(to_text(shown()))); }
void TableView::copy_csv() const { QApplication::clipboard()->setText(QString::fromStdString(to_csv(shown()))); }

void TableView::keyPressEvent(QKeyEvent* event) {
  if (event->matches(QKeySequence::Copy)) {
    copy_text();
    return;
  }
  QTableView::keyPressEvent(event);
}

void TableView::contextMenuEvent(QContextMenuEvent* event) {
  QMenu menu(this);
  menu.addAction(tr("Copy as &text"), this, &TableView::copy_text);
  menu.addAction(tr("Copy as &CSV"), this, &TableView::copy_csv);
  menu.addAction(tr("&Save as CSV…"), this, [this] {
    const QString path = QFileDialog::getSaveFileName(this, tr("Save as CSV"), {}, tr("CSV (*.csv)"));
    if (path.isEmpty()) return;
    QSaveFile file(path);
    if (file.open(QIODevice::WriteOnly)) file.write(QByteArray::fromStdString(to_csv(shown())));
    file.commit();
  });
  menu.exec(event->globalPos());
}

}  // namespace plimsoll::gui
