// How long from a slider's step to the frame that shows the new ledger and volumes, how many stale answers are dropped while it
// is dragged, how long does a frame of a timeline of 10^5 ops take, and does a day of edits leave the memory as it was?
//
//   gui_latency [EDITS [MODEL]]    offscreen; EDITS random edits for the soak, 10000 unless stated; 0 leaves it out; of one
//                                  MODEL alone
//
// Steps are of three kinds.  "Stop by stop" and "jumps" are those of a hand, which takes 200 ms from one to the next, so that
// what is likely has been looked at ahead; "cold" are jumps of which nothing is known.
#include <fmt/format.h>
#include <malloc.h>
#include <time.h>
#include <unistd.h>

#include <QApplication>
#include <QSlider>
#include <QStandardPaths>
#include <algorithm>
#include <fstream>
#include <map>
#include <numeric>
#include <random>

#include "gui/widgets/control_row.hpp"
#include "gui/widgets/hull_view.hpp"
#include "gui/widgets/inputs_panel.hpp"
#include "gui/widgets/main_window.hpp"
#include "gui/widgets/memory_page.hpp"
#include "gui/widgets/step_pages.hpp"
#include "gui/widgets/timeline_view.hpp"
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

/// From one move of a hand to the next.
void pause_of_a_hand() {
  QElapsedTimer timer;
  timer.start();
  wait_until([&] { return timer.elapsed() >= 200; });
}

/// Moves a slider to the stops, each time waiting for the whole answer.
/// @param cold with all forgotten, and nothing looked at ahead
Latencies measure(Session& session, MainWindow& window, const char* key, const std::vector<int>& stops, bool cold) {
  Frames frames;
  window.memory()->hull()->installEventFilter(&frames);
  QSlider* slider = window.inputs()->row(key)->slider();
  slider->setFocus();
  Latencies latencies;
  for (const int stop : stops) {
    if (cold) {
      session.reload();
      settles(session);
      session.expect_model("none");  // in place of what was being looked at ahead
      pause_of_a_hand();
    } else {
      pause_of_a_hand();
    }
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

/// Zooms in at several places, pans there and comes back, as a wheel and a hand do.
/// @return false where a frame takes longer than a screen's, at the median
bool timeline_frames() {
  SessionState state;
  state.scenario = scenario_text("qwen3-30b-a3b", "8xh200", {{"zero.stage", "3"}, {"moe.implementation", "loop"}});
  Session session(state, {});
  MainWindow window(session);
  window.resize(1440, 900);
  window.show();
  if (!settles(session)) return false;
  window.open_tab(2);
  TimelineView* view = window.time()->timeline();
  std::vector<double> frames;
  const auto frame = [&] {
    const double start = thread_ms();
    view->repaint();
    frames.push_back(thread_ms() - start);
  };
  const int width = view->width();
  double shortest = view->visible_seconds();
  for (const double place : {0.2, 0.5, 0.9}) {
    view->fit();
    frame();
    for (int i = 0; i < 40; ++i) {
      view->zoom(1.2, width * place);
      frame();
      view->pan(width * (i % 2 == 0 ? 0.3 : -0.3));
      frame();
    }
    shortest = std::min(shortest, view->visible_seconds());
  }
  const double median = percentile(frames, 0.5);
  fmt::print("timeline of {} ops, from {:.1f} s to {:.1f} ms in view: {} frames, median {:.1f} ms, worst {:.1f}\n",
             session.good()->step->timeline.ops.size(), session.good()->step->step_time_s, shortest * 1e3,
             frames.size(), median, percentile(frames, 1));
  return median < 16;
}

double resident_mib() {
  std::ifstream file("/proc/self/statm");
  double all = 0, resident = 0;
  file >> all >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

/// Random values of random controls; most answers are overtaken, every tenth edit's first one is waited for, and every hundredth
/// edit's last one, so that all threads have their part.
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
    const bool to_the_end = i % 100 == 0;
    if (i % 10 == 0)
      wait_until(
          [&] {
            const AnswerPtr& newest = session.newest();
            return newest->text == session.text() && (newest->has_errors() || !to_the_end || newest->remedy_known);
          },
          30);
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
  std::map<std::string, std::vector<double>> all;  // first frames by kind of step
  fmt::print("{:62} first frame      settled         timeline        window only   ms: median, worst\n", "");
  for (const Case& c : cases) {
    if (argc > 2 && std::string(argv[2]) != c.model) continue;
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
      const auto measured = [&](const char* kind, const std::vector<int>& stops, bool cold) {
        const Latencies latencies = measure(session, window, key, stops, cold);
        print_line(fmt::format("{} {}, {}", name, key, kind), latencies);
        all[kind].insert(all[kind].end(), latencies.first.begin(), latencies.first.end());
        session.reload();  // forgets what is known
        settles(session);
      };
      measured("stop by stop", steps(slider), false);
      measured("jumps", jumps(slider), false);
      measured("cold", jumps(slider), true);
    }
    drag(session, window, "micro_batch");
    print_alone(state.scenario);
  }
  for (const auto& [name, values] : all)
    fmt::print("first frames of all, {}: median {:.1f} ms, nine of ten under {:.1f}, worst {:.1f}\n", name,
               percentile(values, 0.5), percentile(values, 0.9), percentile(values, 1));
  const bool fluid = timeline_frames();
  const int edits = argc > 1 ? std::atoi(argv[1]) : 10000;
  const int soaked = edits > 0 ? soak(edits) : 0;
  return fluid ? soaked : 1;
}
