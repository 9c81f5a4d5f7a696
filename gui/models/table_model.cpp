// A table for Qt's views (gui/models/table_model.hpp).
#include "gui/models/table_model.hpp"

#include <QFont>
#include <QRect>

namespace plimsoll::gui {

void TableModel::show(TableData table) {
  const bool same_form = table.rows.size() == table_.rows.size() && table.columns.size() == table_.columns.size();
  if (!same_form) {
    beginResetModel();
    table_ = std::move(table);
    endResetModel();
    return;
  }
  // Figures change while a slider moves: selection and scrolling stay, and only what has changed is painted again.
  QRect changed;  // columns and rows
  for (int row = 0; row < rowCount(); ++row) {
    const TableRow& before = table_.rows[static_cast<std::size_t>(row)];
    const TableRow& after = table.rows[static_cast<std::size_t>(row)];
    if (before.strong != after.strong || before.ink != after.ink) changed |= QRect(0, row, columnCount(), 1);
    for (int column = 0; column < columnCount(); ++column) {
      const auto c = static_cast<std::size_t>(column);
      if (before.cells[c] != after.cells[c]) changed |= QRect(column, row, 1, 1);
    }
  }
  const bool titles = table.columns != table_.columns;
  table_ = std::move(table);
  if (!changed.isEmpty())
    Q_EMIT dataChanged(index(changed.top(), changed.left()), index(changed.bottom(), changed.right()));
  if (titles) Q_EMIT headerDataChanged(Qt::Horizontal, 0, columnCount() - 1);
}

int TableModel::rowCount(const QModelIndex& parent) const {
  return parent.isValid() ? 0 : static_cast<int>(table_.rows.size());
}

int TableModel::columnCount(const QModelIndex& parent) const {
  return parent.isValid() ? 0 : static_cast<int>(table_.columns.size());
}

QVariant TableModel::data(const QModelIndex& index, int role) const {
  const auto column = static_cast<std::size_t>(index.column());
  const TableRow& row = table_.rows[static_cast<std::size_t>(index.row())];
  const TableCell& cell = row.cells[column];
  switch (role) {
    case Qt::DisplayRole: return QString::fromStdString(cell.text);
    case Qt::ToolTipRole: return cell.tip.empty() ? QVariant() : QString::fromStdString(cell.tip);
    case Qt::TextAlignmentRole:
      return {Qt::AlignVCenter | (table_.columns[column].right ? Qt::AlignRight : Qt::AlignLeft)};
    case Qt::FontRole: {
      if (!row.strong) return {};
      QFont font;
      font.setBold(true);
      return font;
    }
    case order_role:
      return table_.columns[column].right ? QVariant(cell.order) : QVariant(QString::fromStdString(cell.text));
    case id_role: return QString::fromStdString(row.id);
    case ink_role: return QString::fromStdString(row.ink);
    default: return {};
  }
}

QVariant TableModel::headerData(int section, Qt::Orientation orientation, int role) const {
  if (orientation != Qt::Horizontal) return {};
  const TableColumn& column = table_.columns[static_cast<std::size_t>(section)];
  switch (role) {
    case Qt::DisplayRole: return QString::fromStdString(column.title);
    case Qt::ToolTipRole: return column.tip.empty() ? QVariant() : QString::fromStdString(column.tip);
    case Qt::TextAlignmentRole: return {Qt::AlignVCenter | (column.right ? Qt::AlignRight : Qt::AlignLeft)};
    default: return {};
  }
}

}  // namespace plimsoll::gui
