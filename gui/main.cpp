// plimsoll-gui: what-if planning that answers as you drag.
#include <QApplication>
#include <QCommandLineParser>
#include <QFile>
#include <QIcon>
#include <QSettings>

#include <cstdio>
#include <cstring>

#include "gui/session/session.hpp"
#include "gui/widgets/main_window.hpp"

namespace {

/// Qt aborts where it finds no display; this tells beforehand.
bool may_have_display(int argc, char** argv) {
  for (const char* name : {"DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"})
    if (!qEnvironmentVariableIsEmpty(name)) return true;
  for (int i = 1; i < argc; ++i)
    if (std::strcmp(argv[i], "-platform") == 0) return true;
  return false;
}

void set_names() {
  QCoreApplication::setApplicationName("plimsoll-gui");
  QCoreApplication::setOrganizationName("plimsoll");
  QCoreApplication::setApplicationVersion(PLIMSOLL_VERSION);
}

/// Reads the command line; ends the program where help or its version is asked for.
void read_options(QCommandLineParser& parser, const QCoreApplication& application) {
  parser.setApplicationDescription("What-if planning of training runs: memory, communication and time as you drag.");
  parser.addHelpOption();
  parser.addVersionOption();
  parser.addOption({"model", "A preset, a config.json, or sketch:...", "MODEL"});
  parser.addOption({"cluster", "A preset like 8xh100, or a cluster.json.", "CLUSTER"});
  parser.addOption({"nodes", "Replaces the cluster's number of nodes.", "N"});
  parser.addOption({"set", "KEY=VALUE of the plan; repeatable.", "KEY=VALUE"});
  parser.addPositionalArgument("files", "A model, cluster, plan, ds_config or session to open.", "[FILE...]");
  parser.process(application);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace plimsoll::gui;
  set_names();
  QCommandLineParser parser;
  if (!may_have_display(argc, argv)) {
    const QCoreApplication application(argc, argv);
    read_options(parser, application);
    std::fputs("plimsoll-gui: there is no display: DISPLAY and WAYLAND_DISPLAY are not set\n", stderr);
    return 3;
  }
  const QApplication application(argc, argv);
  QApplication::setDesktopFileName("plimsoll-gui");
  QApplication::setWindowIcon(QIcon::fromTheme("plimsoll", QIcon(":/plimsoll.svg")));
  read_options(parser, application);

  SessionState state = first_example();
  QString error;
  // What an earlier run left behind it did not end regularly: its edits are not lost.
  const bool recovered = QFile::exists(autosave_path());
  if (recovered) {
    if (const auto saved = open_session(autosave_path(), &error)) state = *saved;
  }
  if (parser.isSet("model") || parser.isSet("cluster") || parser.isSet("set")) {
    state = first_example();
    state.scenario.settings.clear();
    state.scenario.nodes = parser.value("nodes").toInt();
    if (parser.isSet("model")) state.scenario.model = parser.value("model").toStdString();
    if (parser.isSet("cluster")) state.scenario.cluster = parser.value("cluster").toStdString();
    for (const QString& set : parser.values("set"))
      state.scenario.settings[set.section('=', 0, 0).toStdString()] = set.section('=', 1).toStdString();
  }
  int code = 0;
  {
    Session session(state, autosave_path());
    MainWindow window(session);
    window.restoreGeometry(QSettings().value("geometry").toByteArray());
    window.show();
    for (const QString& file : parser.positionalArguments()) window.open_file(file);
    code = QApplication::exec();
  }
  QFile::remove(autosave_path());
  return code;
}
