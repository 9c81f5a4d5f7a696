// How is a session kept?  As a JSON file ("….plimsoll") with the scenario, the one it is compared with, and the tab that was
// open; the same form is autosaved after every edit, so that a crash loses none.
#pragma once

#include <QString>
#include <optional>

#include "gui/session/scenario_text.hpp"

namespace plimsoll::gui {

struct SessionState {
  ScenarioText scenario;
  std::optional<ScenarioText> compared;  ///< plan B
  int tab = 0;
  bool operator==(const SessionState&) const = default;
};

QByteArray session_text(const SessionState& state);
/// @param error why there is none
std::optional<SessionState> read_session(const QByteArray& text, QString* error);

/// Writes whole or not at all.  @return why it failed; empty if it did not
QString save_session(const SessionState& state, const QString& path);
std::optional<SessionState> open_session(const QString& path, QString* error);

/// Where edits are saved while the program runs; gone after a regular end.
QString autosave_path();

/// What a first start shows: a model that fits, at a glance.
SessionState first_example();

}  // namespace plimsoll::gui
