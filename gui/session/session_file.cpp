// Sessions as JSON (gui/session/session_file.hpp).
#include "gui/session/session_file.hpp"

#include <QDir>
#include <QFile>
#include <QJsonDocument>
#include <QJsonObject>
#include <QSaveFile>
#include <QStandardPaths>

namespace plimsoll::gui {
namespace {

QString text_of(const std::string& text) { return QString::fromStdString(text); }

QJsonObject json_of(const ScenarioText& text) {
  QJsonObject settings;
  for (const auto& [key, value] : text.settings) settings[text_of(key)] = text_of(value);
  QJsonObject json{{"model", text_of(text.model)}, {"cluster", text_of(text.cluster)}, {"settings", settings}};
  if (text.nodes > 0) json["nodes"] = text.nodes;
  if (!text.plan_file.empty()) json[text.is_ds_config ? "ds" : "plan"] = text_of(text.plan_file);
  return json;
}

/// Nothing if it lacks what a scenario needs.
std::optional<ScenarioText> scenario_of(const QJsonValue& value) {
  const QJsonObject json = value.toObject();
  if (!json["model"].isString() || !json["cluster"].isString()) return std::nullopt;
  ScenarioText text;
  text.model = json["model"].toString().toStdString();
  text.cluster = json["cluster"].toString().toStdString();
  text.nodes = json["nodes"].toInt();
  text.is_ds_config = json.contains("ds");
  text.plan_file = json[text.is_ds_config ? "ds" : "plan"].toString().toStdString();
  const QJsonObject settings = json["settings"].toObject();
  for (auto it = settings.begin(); it != settings.end(); ++it)
    text.settings[it.key().toStdString()] = it.value().toString().toStdString();
  return text;
}

}  // namespace

QByteArray session_text(const SessionState& state) {
  QJsonObject json{{"plimsoll_session", 1}, {"scenario", json_of(state.scenario)}, {"tab", state.tab}};
  if (state.compared) json["compared"] = json_of(*state.compared);
  return QJsonDocument(json).toJson();
}

std::optional<SessionState> read_session(const QByteArray& text, QString* error) {
  QJsonParseError parse;
  const QJsonDocument document = QJsonDocument::fromJson(text, &parse);
  if (parse.error != QJsonParseError::NoError) {
    *error = QStringLiteral("no session: %1 at byte %2").arg(parse.errorString()).arg(parse.offset);
    return std::nullopt;
  }
  const auto scenario = scenario_of(document["scenario"]);
  if (document["plimsoll_session"].toInt() != 1 || !scenario) {
    *error = QStringLiteral("no session: it has no \"plimsoll_session\": 1 with a scenario of a model and a cluster");
    return std::nullopt;
  }
  return SessionState{*scenario, scenario_of(document["compared"]), document["tab"].toInt()};
}

QString save_session(const SessionState& state, const QString& path) {
  QSaveFile file(path);
  const QByteArray text = session_text(state);
  if (!file.open(QIODevice::WriteOnly) || file.write(text) != text.size() || !file.commit())
    return QStringLiteral("cannot write %1: %2").arg(path, file.errorString());
  return {};
}

std::optional<SessionState> open_session(const QString& path, QString* error) {
  QFile file(path);
  if (!file.open(QIODevice::ReadOnly)) {
    *error = QStringLiteral("cannot read %1: %2").arg(path, file.errorString());
    return std::nullopt;
  }
  auto state = read_session(file.readAll(), error);
  if (!state) *error = QStringLiteral("%1: %2").arg(path, *error);
  return state;
}

QString autosave_path() {
  const QString folder = QStandardPaths::writableLocation(QStandardPaths::AppDataLocation);
  QDir().mkpath(folder);
  return folder + "/autosave.plimsoll";
}

SessionState first_example() {
  SessionState state;
  state.scenario.model = "qwen3-30b-a3b";
  state.scenario.cluster = "8xh100";
  state.scenario.nodes = 2;
  state.scenario.settings = {{"zero.stage", "3"},
                             {"sequence", "4096"},
                             {"moe.implementation", "autoep"},
                             {"expert_parallel", "8"},
                             {"recompute", "full"}};
  return state;
}

}  // namespace plimsoll::gui
