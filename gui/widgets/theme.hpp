// Which colours, and how are they told apart without colour?  A palette that the colour-blind can tell apart (after Paul Tol's
// "muted" scheme, personal.sron.nl/~pault), each colour with a pattern of its own where neighbours might be confused; for
// light and dark windows alike.
#pragma once

#include <QBrush>
#include <QColor>
#include <QIcon>
#include <QPalette>
#include <QString>

#include "planner/account/ledger.hpp"
#include "simulator/timeline.hpp"

class QPainter;

namespace plimsoll::gui {

bool is_dark(const QPalette& palette);

struct Ink {
  QColor colour;
  Qt::BrushStyle pattern = Qt::SolidPattern;  ///< drawn over the colour
};

Ink ink_of(Category category, bool dark);
/// By a name of the ledger's rows or categories; grey for what is no category.
Ink ink_of(const std::string& name, bool dark);
/// Of an op of the step, by what it does.
Ink ink_of(const RankProgram& program, const Op& op, bool dark);
/// The kinds of ops that ink_of() tells apart, for a legend.
struct OpInk {
  const char* name;
  Ink ink;
};
std::vector<OpInk> op_inks(bool dark);

Ink ink_of(Tier tier, bool dark);
QColor colour_of(Verdict verdict, bool dark);
/// What is said beside the colour: a tick, an exclamation mark, a cross.
QString mark_of(Verdict verdict);

/// Fills an area with the colour, then the pattern.
void fill(QPainter& painter, const QRectF& area, const Ink& ink);

/// A small square of the ink.
QIcon swatch(const Ink& ink, const QPalette& palette);

/// Black or white, whichever reads on it.
QColor text_on(const QColor& colour);

/// What is seen of a colour of that opacity on a ground.
QColor over(const QColor& colour, double opacity, const QColor& ground);

/// What a category of the ledger is, for tooltips.
QString term_of(const std::string& category);

}  // namespace plimsoll::gui
