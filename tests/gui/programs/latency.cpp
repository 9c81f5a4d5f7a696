// How long from a slider's step to the frame that shows the new ledger and volumes, how many stale answers are dropped while it
// is dragged, and does a day of edits leave the memory as it was?
//
//   gui_latency [EDITS]    offscreen; EDITS random edits for the soak, 10000 unless stated; 0 leaves it out
#include <fmt/format.h>
#include <malloc.h>
#include <time.h>
#include <unistd.h>

#include <QApplication>
#include <QSlider>
#include <QStandardPaths>
#include <algorithm>
#include <fstream>
#include <numeric>
#include <random>

#include "gui/widgets/control_row.hpp"
#include "gui/widgets/hull_view.hpp"
#include "gui/widgets/inputs_panel.hpp"
#include "gui/widgets/main_window.hpp"
#include "gui/widgets/memory_page.hpp"
#include "tests/gui/support.hpp"

namespace {

using namespace plimsoll::gui;
using testing::scenario_text;
using testing::settles;
using testing::wait_until;

/// Counts the frames of a view.
class Frames : public QObject {
 public:
  int painted = 0;

 protected:
  bool eventFilter(QObject*, QEvent* event) override {
    if (event->type() == QEvent::Paint) ++painted;
    return false;
  }
};

struct Latencies {
  std::vector<double> first, settled, timed;  // milliseconds
  std::vector<double> window;                 // processor time of the window's thread, up to the first frame
};

/// Processor time of this thread, which other programs on the machine do not lengthen.
double thread_ms() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

/// Processor time of the first step of an answer, and of the second.
void print_alone(const ScenarioText& text) {
  std::vector<double> quick, settled;
  for (int i = 0; i < 7; ++i) {
    double start = thread_ms();
    const AnswerPtr answer = answer_quickly(text, 0);
    quick.push_back(thread_ms() - start);
    start = thread_ms();
    settle(*answer);
    settled.push_back(thread_ms() - start);
  }
  std::sort(quick.begin(), quick.end());
  std::sort(settled.begin(), settled.end());
  fmt::print("  computed alone, processor time: first step {:.1f} ms, settling {:.1f} ms (medians)\n", quick[3],
             settled[3]);
}

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<std::size_t>(share * static_cast<double>(values.size())))];
}

void print_line(const std::string& name, const Latencies& latencies) {
  const auto both = [](const std::vector<double>& values) {
    return fmt::format("{:6.1f} {:6.1f}", percentile(values, 0.5), percentile(values, 1));
  };
  fmt::print("{:62} {}   {}   {}   {}\n", name, both(latencies.first), both(latencies.settled), both(latencies.timed),
             both(latencies.window));
}

/// The slider of a key under the keyboard, as long as a hand needs to get from there to the first move.
QSlider* touch(MainWindow& window, const char* key) {
  QSlider* slider = window.inputs()->row(key)->slider();
  slider->setFocus();
  QElapsedTimer timer;
  timer.start();
  wait_until([&] { return timer.elapsed() >= 150; });
  return slider;
}

/// Moves a slider to the stops, each time waiting for the whole answer.
Latencies measure(Session& session, MainWindow& window, const char* key, const std::vector<int>& stops) {
  Frames frames;
  window.memory()->hull()->installEventFilter(&frames);
  QSlider* slider = touch(window, key);
  Latencies latencies;
  for (const int stop : stops) {
    const int before = frames.painted, value = slider->value();
    QElapsedTimer timer;
    timer.start();
    const double thread = thread_ms();
    slider->setValue(stop);
    if (slider->value() == value) continue;  // no legal stop there
    const auto passed = [&](std::vector<double>& list, auto condition) {
      if (wait_until(condition, 30)) list.push_back(static_cast<double>(timer.nsecsElapsed()) * 1e-6);
    };
    passed(latencies.first, [&] { return !session.is_stale() && frames.painted > before; });
    latencies.window.push_back(thread_ms() - thread);
    passed(latencies.settled, [&] { return session.good()->settled; });
    passed(latencies.timed, [&] { return session.good()->step != nullptr; });
    wait_until([&] { return session.good()->remedy_known; }, 30);
  }
  window.memory()->hull()->removeEventFilter(&frames);
  return latencies;
}

/// Up a slider stop by stop.
std::vector<int> steps(const QSlider& slider) {
  std::vector<int> stops(8);
  std::iota(stops.begin(), stops.end(), std::min(slider.value() + 1, slider.maximum() - 7));
  return stops;
}

/// To and fro between stops none of which is another's neighbour: no answer is known before.
std::vector<int> jumps(const QSlider& slider) {
  std::vector<int> stops;
  for (int low = 0, high = slider.maximum(); high - low > 2; low += 2, high -= 2) {
    stops.push_back(high);
    stops.push_back(low);
  }
  return stops;
}

/// Steps faster than anything can answer, as a mouse does.
void drag(Session& session, MainWindow& window, const char* key) {
  QSlider* slider = window.inputs()->row(key)->slider();
  const EvaluatorCounts before = session.counts();
  for (int i = 0; i < 100; ++i) {
    slider->setValue(i % (slider->maximum() + 1));
    QElapsedTimer timer;
    timer.start();
    while (timer.elapsed() < 8) QCoreApplication::processEvents(QEventLoop::AllEvents, 4);
  }
  wait_until([&] { return !session.is_stale(); });
  const EvaluatorCounts after = session.counts();
  fmt::print("  dragged, a step every 8 ms: {} edits, {} skipped, {} stale answers dropped\n",
             after.asked - before.asked, after.skipped - before.skipped, after.stale - before.stale);
}

double resident_mib() {
  std::ifstream file("/proc/self/statm");
  double all = 0, resident = 0;
  file >> all >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

/// Random values of random controls; most answers are overtaken, every hundredth is waited for.
int soak(int edits) {
  SessionState state;
  state.scenario = scenario_text("olmoe-1b-7b", "8xh100", {{"zero.stage", "3"}});
  Session session(state, {});
  MainWindow window(session);
  window.show();
  if (!settles(session)) return 1;
  std::mt19937 random(1);
  const std::vector<const char*> models = {"olmoe-1b-7b", "llama-3.2-1b", "mixtral-8x7b", "qwen3-4b"};
  double early = 0, late = 0;
  for (int i = 1; i <= edits; ++i) {
    const Control& control = controls()[random() % controls().size()];
    if (random() % 40 == 0) {
      session.set_model(models[random() % models.size()]);
    } else if (random() % 6 == 0) {
      session.undo();
    } else if (random() % 12 == 0) {
      session.unset(QString::fromStdString(control.key));
    } else {
      session.set(QString::fromStdString(control.key),
                  QString::fromStdString(control.values[random() % control.values.size()]));
    }
    if (random() % 50 == 0) window.open_tab(static_cast<int>(random() % 5));
    QCoreApplication::processEvents(QEventLoop::AllEvents, 2);
    if (i % 100 == 0)
      wait_until([&] { return session.newest() && (!session.is_stale() || session.newest()->has_errors()); }, 30);
    if (i == edits / 4) early = resident_mib();
    if (i > edits / 4 && i % std::max(1, edits / 8) == 0)
      fmt::print("  after {} edits: {:.0f} MiB\n", i, resident_mib());
  }
  late = resident_mib();
  const EvaluatorCounts counts = session.counts();
  fmt::print("soak: {} edits, {:.0f} MiB after a quarter, {:.0f} MiB at the end; {} skipped, {} stale, {} delivered\n",
             edits, early, late, counts.skipped, counts.stale, counts.delivered);
  return late < early * 1.5 + 100 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (!qEnvironmentVariableIsSet("QT_QPA_PLATFORM")) qputenv("QT_QPA_PLATFORM", "offscreen");
  QStandardPaths::setTestModeEnabled(true);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  QElapsedTimer start;
  start.start();
  QApplication application(argc, argv);
  struct Case {
    const char* model;
    const char* cluster;
    Settings settings;
  };
  const Settings autoep = {{"zero.stage", "3"}, {"expert_parallel", "8"}, {"moe.implementation", "autoep"}},
                 zero3 = {{"zero.stage", "3"}};
  const std::vector<Case> cases = {{"mixtral-8x7b", "8xh100", autoep},    {"mixtral-8x7b", "64xh100", zero3},
                                   {"mixtral-8x7b", "1024xh100", autoep}, {"deepseek-v3", "64xh100", autoep},
                                   {"deepseek-v3", "1024xh100", autoep},  {"deepseek-v3", "1024xh100", zero3}};
  bool first = true;
  std::vector<double> all, all_jumps;  // first frames
  fmt::print("{:62} first frame      settled         timeline        window only   ms: median, worst\n", "");
  for (const Case& c : cases) {
    SessionState state;
    state.scenario = scenario_text(c.model, c.cluster, c.settings);
    Session session(state, {});
    MainWindow window(session);
    window.resize(1440, 900);
    window.show();
    QCoreApplication::processEvents();
    if (first) fmt::print("start to the window's first frame: {} ms\n", start.elapsed());
    first = false;
    if (!settles(session)) return 1;
    const std::string name = fmt::format("{} {} {}", c.model, c.cluster,
                                         c.settings.count("expert_parallel") != 0 ? "ZeRO-3 ep 8" : "ZeRO-3");
    for (const char* key : {"micro_batch", "sequence"}) {
      const QSlider& slider = *window.inputs()->row(key)->slider();
      const Latencies stepped = measure(session, window, key, steps(slider));
      print_line(fmt::format("{} {}, stop by stop", name, key), stepped);
      all.insert(all.end(), stepped.first.begin(), stepped.first.end());
      session.reload();  // forgets what is known
      settles(session);
      const Latencies jumped = measure(session, window, key, jumps(slider));
      print_line(fmt::format("{} {}, jumps", name, key), jumped);
      all_jumps.insert(all_jumps.end(), jumped.first.begin(), jumped.first.end());
    }
    drag(session, window, "micro_batch");
    print_alone(state.scenario);
  }
  for (const auto& [name, values] : {std::pair("stop by stop", all), std::pair("jumps", all_jumps)})
    fmt::print("first frames of all, {}: median {:.1f} ms, nine of ten under {:.1f}, worst {:.1f}\n", name,
               percentile(values, 0.5), percentile(values, 0.9), percentile(values, 1));
  const int edits = argc > 1 ? std::atoi(argv[1]) : 10000;
  return edits > 0 ? soak(edits) : 0;
}
