// Drawing of the cluster (gui/widgets/topology_view.hpp).
#include "gui/widgets/topology_view.hpp"

#include <QPainter>
#include <array>

#include "gui/widgets/theme.hpp"
#include "planner/base/format.hpp"
#include "planner/cli/in_words.hpp"

namespace plimsoll::gui {
namespace {

constexpr int most_nodes = 4, most_gpus = 8;
constexpr double thinnest = 1, widest = 9;

}  // namespace

/// Pens of the tiers, by what they carry.
struct TopologyView::Links {
  std::array<TierLoad, tier_count> loads{};
  bool dark = false;
  QPen pen(Tier tier) const {
    Bytes most;
    for (const TierLoad& load : loads) most = std::max(most, load.wire);
    const Bytes wire = loads[static_cast<std::size_t>(tier)].wire;
    if (wire.count == 0) return {QColor(dark ? "#5a6068" : "#c4c9d0"), thinnest, Qt::DotLine};
    return {ink_of(tier, dark).colour, thinnest + (widest - thinnest) * (wire / most), Qt::SolidLine, Qt::RoundCap};
  }
};

TopologyView::TopologyView(QWidget* parent) : QWidget(parent) {
  setAccessibleName(tr("The cluster and what its links carry"));
}

void TopologyView::show_answer(AnswerPtr answer, bool stale) {
  answer_ = std::move(answer);
  stale_ = stale;
  update();
}

void TopologyView::paintEvent(QPaintEvent*) {
  QPainter painter(this);
  painter.setRenderHint(QPainter::Antialiasing);
  painter.fillRect(rect(), palette().base());
  if (!answer_ || !answer_->scenario) return;
  if (stale_) painter.setOpacity(0.55);
  Links links;
  links.dark = is_dark(palette());
  for (const TierLoad& load : answer_->loads) links.loads[static_cast<std::size_t>(load.tier)] = load;
  const ClusterSpec& cluster = answer_->scenario->cluster;
  const int shown = std::min(cluster.nodes, most_nodes);
  const double legend = 26, gap = 14, top = cluster.nodes > 1 ? height() * 0.42 : 16;
  const double room = width() - gap * (shown + 1), node_width = std::min(room / shown, 420.0);
  const double left = (width() - shown * node_width - (shown - 1) * gap) / 2;
  std::vector<QRectF> nodes;
  nodes.reserve(static_cast<std::size_t>(shown));
  for (int i = 0; i < shown; ++i)
    nodes.emplace_back(left + i * (node_width + gap), top, node_width, height() - top - legend - 14);
  if (cluster.nodes > 1) paint_network(painter, nodes, links);
  for (int i = 0; i < shown; ++i) {
    // The last of more nodes than there is room for stands for the rest.
    const bool rest = i + 1 == shown && cluster.nodes > shown;
    paint_node(painter, nodes[static_cast<std::size_t>(i)], rest ? cluster.nodes - 1 : i, links);
    if (rest) {
      painter.setPen(palette().text().color());
      painter.drawText(
          QRectF(nodes[static_cast<std::size_t>(i)].left() - gap - 6, nodes.front().top() - 4, gap + 12, 20),
          Qt::AlignCenter, QStringLiteral("…"));
    }
  }
  paint_legend(painter, QRectF(12, height() - legend - 4, width() - 24, legend), links);
}

void TopologyView::box(QPainter& painter, const QRectF& area, const QString& words) const {
  painter.setPen(QPen(palette().mid().color(), 1));
  painter.setBrush(palette().window());
  painter.drawRoundedRect(area, 4, 4);
  painter.setPen(palette().text().color());
  painter.drawText(area, Qt::AlignCenter,
                   painter.fontMetrics().elidedText(words, Qt::ElideRight, static_cast<int>(area.width()) - 6));
}

void TopologyView::paint_node(QPainter& painter, const QRectF& area, int node, const Links& links) const {
  const ClusterSpec& cluster = answer_->scenario->cluster;
  const int gpus = std::min(cluster.devices_per_node, most_gpus);
  painter.setPen(QPen(palette().mid().color(), 1));
  painter.setBrush(Qt::NoBrush);
  painter.drawRoundedRect(area, 8, 8);
  painter.setPen(palette().text().color());
  painter.drawText(
      QRectF(area.left(), area.bottom() - 22, area.width(), 20), Qt::AlignCenter,
      tr("node %1: %2 × %3").arg(node).arg(cluster.devices_per_node).arg(QString::fromStdString(cluster.device.name)));
  const QRectF hub(area.left() + 16, area.top() + 18, area.width() - 32, 22);
  const double slot = hub.width() / gpus, size = std::min(slot - 6, 40.0), y = area.bottom() - 34 - size;
  painter.setPen(links.pen(cluster.in_node.tier));
  for (int i = 0; i < gpus; ++i) {
    const double x = hub.left() + slot * (i + 0.5);
    painter.drawLine(QPointF(x, hub.bottom()), QPointF(x, y));
  }
  box(painter, hub, cluster.in_node.tier == Tier::nvlink ? tr("NVLink switches") : tr("PCIe"));
  for (int i = 0; i < gpus; ++i)
    box(painter, {hub.left() + slot * (i + 0.5) - size / 2, y, size, size}, QString::number(i));
  const TierLoad& host = links.loads[static_cast<std::size_t>(Tier::host)];
  if (host.wire.count > 0) {
    painter.setPen(links.pen(Tier::host));
    painter.drawLine(QPointF(area.left() + 10, y + size / 2), QPointF(hub.left() + slot / 2 - size / 2, y + size / 2));
  }
}

void TopologyView::paint_network(QPainter& painter, const std::vector<QRectF>& nodes, const Links& links) const {
  const ClusterSpec& cluster = answer_->scenario->cluster;
  const double top = 14, leaf_y = nodes.front().top() * 0.56;
  const QRectF spine(width() / 2.0 - 90, top, 180, 24);
  const int pods = cluster.nodes > cluster.nodes_per_leaf ? 2 : 1;
  std::vector<QRectF> leaves;
  leaves.reserve(static_cast<std::size_t>(pods));
  for (int i = 0; i < pods; ++i) leaves.emplace_back(width() * (i + 0.5) / pods - 105, leaf_y, 210, 24);
  if (pods > 1) {
    painter.setPen(links.pen(Tier::spine));
    for (const QRectF& leaf : leaves) painter.drawLine(spine.center(), leaf.center());
    box(painter, spine,
        cluster.spine_oversubscription > 1 ? tr("spine, %1 : 1").arg(cluster.spine_oversubscription) : tr("spine"));
  }
  painter.setPen(links.pen(Tier::nic));
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const QRectF& leaf = leaves[i * leaves.size() / nodes.size()];
    painter.drawLine(QPointF(leaf.center().x(), leaf.bottom()), QPointF(nodes[i].center().x(), nodes[i].top()));
  }
  for (const QRectF& leaf : leaves)
    box(painter, leaf, cluster.rail_optimized ? tr("%1 rail switches").arg(cluster.nics_per_node) : tr("leaf switch"));
}

void TopologyView::paint_legend(QPainter& painter, const QRectF& area, const Links& links) const {
  double x = area.left();
  for (const TierLoad& load : links.loads) {
    if (load.wire.count == 0) continue;
    painter.setPen(links.pen(load.tier));
    painter.drawLine(QPointF(x + 4, area.center().y()), QPointF(x + 26, area.center().y()));
    const QString words = tr("%1 %2 GiB, %3 alone")
                              .arg(QString::fromUtf8(name_of(load.tier)), QString::fromStdString(gibibytes(load.wire)),
                                   QString::fromStdString(format(load.alone)));
    painter.setPen(palette().text().color());
    painter.drawText(QRectF(x + 34, area.top(), area.right() - x - 34, area.height()), Qt::AlignVCenter | Qt::AlignLeft,
                     words);
    x += 54 + painter.fontMetrics().horizontalAdvance(words);
  }
  if (x == area.left()) {
    painter.setPen(palette().text().color());
    painter.drawText(area, Qt::AlignCenter, tr("One GPU sends nothing"));
  }
}

}  // namespace plimsoll::gui
