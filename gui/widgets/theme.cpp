// The palette (gui/widgets/theme.hpp).
#include "gui/widgets/theme.hpp"

#include <QPainter>
#include <QPixmap>
#include <array>

namespace plimsoll::gui {
namespace {

struct Entry {
  const char* light;
  const char* dark;
  Qt::BrushStyle pattern;
  const char* term;
};

// In the order of Category.
constexpr std::array<Entry, category_count> inks{{
    {"#332288", "#6a5acd", Qt::SolidPattern, "The rank's part of the model's weights."},
    {"#88ccee", "#88ccee", Qt::SolidPattern, "Gradients that wait for the optimizer, or the rank's part of them."},
    {"#44aa99", "#44aa99", Qt::SolidPattern, "fp32 copies of the weights that the optimizer updates."},
    {"#117733", "#2f9d55", Qt::SolidPattern, "First and second moments of Adam."},
    {"#999933", "#b0b04a", Qt::BDiagPattern, "Whole weights of a layer, brought together for use and freed after it."},
    {"#ddcc77", "#ddcc77", Qt::SolidPattern, "What the forward keeps for the backward."},
    {"#cc6677", "#d97a8a", Qt::SolidPattern,
     "Rows of tokens on their way to and from the experts, and what experts keep."},
    {"#882255", "#b8457f", Qt::SolidPattern, "Logits over the vocabulary, their fp32 copies, and the loss."},
    {"#aa4499", "#c069b2", Qt::FDiagPattern, "Flat buffers in which gradients wait to be reduced together."},
    {"#6699cc", "#79a9d9", Qt::DiagCrossPattern, "Tensors of one operation: casts, partial results."},
    {"#aa7744", "#c08d5a", Qt::HorPattern, "Workspaces of libraries."},
}};

Ink ink_of_entry(const Entry& entry, bool dark) { return {QColor(dark ? entry.dark : entry.light), entry.pattern}; }

std::optional<Category> category_of(const std::string& name) {
  for (int i = 0; i < category_count; ++i)
    if (name == name_of(static_cast<Category>(i))) return static_cast<Category>(i);
  return std::nullopt;
}

enum OpKind { product, attention, kernel, gather, reduce, all_reduce, exchange, copy, host };

std::vector<OpInk> op_table(bool dark) {
  return {{"GEMM", {QColor(dark ? "#6a5acd" : "#332288"), Qt::SolidPattern}},
          {"attention", {QColor(dark ? "#2f9d55" : "#117733"), Qt::SolidPattern}},
          {"other kernels", {QColor("#88ccee"), Qt::SolidPattern}},
          {"all-gather", {QColor(dark ? "#b0b04a" : "#999933"), Qt::BDiagPattern}},
          {"reduce-scatter", {QColor(dark ? "#c069b2" : "#aa4499"), Qt::FDiagPattern}},
          {"all-reduce", {QColor("#cc6677"), Qt::DiagCrossPattern}},
          {"all-to-all", {QColor("#44aa99"), Qt::HorPattern}},
          {"copies", {QColor("#ddcc77"), Qt::SolidPattern}},
          {"host", {QColor(dark ? "#8a8f98" : "#9aa0a8"), Qt::SolidPattern}}};
}

OpKind kind_of(const RankProgram& program, const Op& op) {
  if (const auto* compute = std::get_if<Compute>(&op.action)) {
    const KernelKind kind = program.kernels[compute->kernel].kind;
    if (kind == KernelKind::gemm || kind == KernelKind::grouped_gemm) return product;
    if (kind == KernelKind::attention_forward || kind == KernelKind::attention_backward) return attention;
    return kernel;
  }
  if (const auto* collective = std::get_if<Collective>(&op.action)) {
    switch (collective->kind) {
      case CollectiveKind::all_gather:
      case CollectiveKind::broadcast: return gather;
      case CollectiveKind::reduce_scatter: return reduce;
      case CollectiveKind::all_reduce: return all_reduce;
      case CollectiveKind::all_to_all: return exchange;
    }
  }
  return std::holds_alternative<HostCopy>(op.action) ? copy : host;
}

}  // namespace

bool is_dark(const QPalette& palette) { return palette.color(QPalette::Window).lightness() < 128; }

Ink ink_of(Category category, bool dark) { return ink_of_entry(inks[static_cast<std::size_t>(category)], dark); }

Ink ink_of(const std::string& name, bool dark) {
  if (const auto category = category_of(name)) return ink_of(*category, dark);
  const QColor grey(dark ? "#8a8f98" : "#9aa0a8");
  const bool unused = name == "allocator_slack" || name == "reserved but not in use then";
  return {unused ? QColor(dark ? "#4a4f57" : "#dfe3e8") : grey, unused ? Qt::Dense6Pattern : Qt::SolidPattern};
}

Ink ink_of(const RankProgram& program, const Op& op, bool dark) {
  static const std::vector<OpInk> light_table = op_table(false), dark_table = op_table(true);
  return (dark ? dark_table : light_table)[static_cast<std::size_t>(kind_of(program, op))].ink;
}

std::vector<OpInk> op_inks(bool dark) { return op_table(dark); }

Ink ink_of(Tier tier, bool dark) {
  switch (tier) {
    case Tier::nvlink: return ink_of(Category::master_weights, dark);
    case Tier::pcie: return ink_of(Category::activations, dark);
    case Tier::nic: return ink_of(Category::parameters, dark);
    case Tier::spine: return ink_of(Category::logits_and_loss, dark);
    case Tier::host: return ink_of(Category::workspace, dark);
  }
  return {};
}

QColor colour_of(Verdict verdict, bool dark) {
  switch (verdict) {
    case Verdict::fits: return {dark ? "#4fbf73" : "#117733"};
    case Verdict::tight: return {dark ? "#e0b84c" : "#9a6a00"};
    case Verdict::oom: return {dark ? "#f07888" : "#b3213a"};
  }
  return {};
}

QString mark_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::fits: return QStringLiteral("\u2713");
    case Verdict::tight: return QStringLiteral("!");
    case Verdict::oom: return QStringLiteral("\u2717");
  }
  return {};
}

void fill(QPainter& painter, const QRectF& area, const Ink& ink) {
  painter.fillRect(area, ink.colour);
  if (ink.pattern == Qt::SolidPattern) return;
  QColor lines = text_on(ink.colour);
  lines.setAlpha(90);
  painter.fillRect(area, QBrush(lines, ink.pattern));
}

QIcon swatch(const Ink& ink, const QPalette& palette) {
  constexpr int size = 24;  // halved on display, so that it is sharp on screens of twice the resolution
  QPixmap pixmap(size, size);
  pixmap.fill(Qt::transparent);
  QPainter painter(&pixmap);
  const QRectF area(2, 2, size - 4, size - 4);
  fill(painter, area, ink);
  painter.setPen(palette.color(QPalette::Mid));
  painter.drawRect(area);
  return {pixmap};
}

QColor text_on(const QColor& colour) {
  constexpr int equal_contrast = 117;  // a relative luminance of 0.18 (WCAG 2.1)
  return qGray(colour.rgb()) > equal_contrast ? QColor(Qt::black) : QColor(Qt::white);
}

QColor over(const QColor& colour, double opacity, const QColor& ground) {
  const auto mixed = [&](float above, float below) {
    return static_cast<float>(opacity) * above + static_cast<float>(1 - opacity) * below;
  };
  return QColor::fromRgbF(mixed(colour.redF(), ground.redF()), mixed(colour.greenF(), ground.greenF()),
                          mixed(colour.blueF(), ground.blueF()));
}

QString term_of(const std::string& category) {
  if (const auto known = category_of(category)) return QString::fromUtf8(inks[static_cast<std::size_t>(*known)].term);
  if (category == "allocator_slack")
    return QStringLiteral("What blocks keep beyond their tensors since they were not split.");
  if (category == "reserved but not in use then")
    return QStringLiteral("Free blocks in the allocator's segments: fragmentation, and room from earlier peaks.");
  return {};
}

}  // namespace plimsoll::gui
