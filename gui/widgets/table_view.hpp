// How is a table shown?  Sorted by a click, copied as text or CSV, with swatches before the categories of the ledger.
#pragma once

#include <QTableView>

#include "gui/models/table_model.hpp"

class QSortFilterProxyModel;

namespace plimsoll::gui {

class TableView : public QTableView {
  Q_OBJECT
 public:
  /// @param name says what it shows, for screen readers
  explicit TableView(const QString& name, QWidget* parent = nullptr);

  void show_table(TableData table);
  const TableData& table() const { return model_->table(); }
  /// The id of the current row; "" if there is none.
  std::string current_id() const;
  /// Makes the row with that id current.
  void select_id(const std::string& id);
  void set_sortable(bool sortable);
  void copy_text() const;
  void copy_csv() const;

 Q_SIGNALS:
  void current_row_changed(const QString& id);
  void row_activated(const QString& id);  ///< Enter or a double click

 protected:
  void keyPressEvent(QKeyEvent* event) override;
  void contextMenuEvent(QContextMenuEvent* event) override;

 private:
  void fit_columns();
  TableData shown() const;

  TableModel* model_;
  QSortFilterProxyModel* sorted_;
  bool new_form_ = false;             ///< columns are measured anew
  std::vector<std::size_t> longest_;  ///< bytes of the text by which a column is as wide as it is
};

}  // namespace plimsoll::gui
