// A table as Qt's views want it.
#pragma once

#include <QAbstractTableModel>

#include "gui/models/table.hpp"

namespace plimsoll::gui {

class TableModel : public QAbstractTableModel {
  Q_OBJECT
 public:
  enum Roles { order_role = Qt::UserRole, id_role, ink_role };

  using QAbstractTableModel::QAbstractTableModel;

  const TableData& table() const { return table_; }
  void show(TableData table);
  const std::string& id(int row) const { return table_.rows[static_cast<std::size_t>(row)].id; }

  int rowCount(const QModelIndex& parent = {}) const override;
  int columnCount(const QModelIndex& parent = {}) const override;
  QVariant data(const QModelIndex& index, int role) const override;
  QVariant headerData(int section, Qt::Orientation orientation, int role) const override;

 private:
  TableData table_;
};

}  // namespace plimsoll::gui
