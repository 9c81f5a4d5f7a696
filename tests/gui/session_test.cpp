// Does a session keep the last good answer, drop stale ones, undo, save and recover?  Without a window.
#include "gui/session/session.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <QFile>
#include <QTemporaryDir>
#include <atomic>
#include <chrono>
#include <thread>

#include "gui/session/measured_record.hpp"
#include "planner/base/give_up.hpp"
#include "tests/gui/support.hpp"

namespace plimsoll::gui {
namespace {

using testing::fails;
using testing::scenario_text;
using testing::settles;
using testing::small_state;
using testing::wait_until;

TEST(Session, AnswersInStepsAndEndsWithAWholeAnswer) {
  Session session(small_state(), {});
  ASSERT_TRUE(wait_until([&] { return session.good() != nullptr; }));
  EXPECT_GT(session.good()->ledger->allocated_peak.value.count, 0);
  EXPECT_FALSE(session.good()->phases.empty());
  ASSERT_TRUE(settles(session));
  EXPECT_TRUE(session.good()->settled);
  ASSERT_NE(session.good()->step, nullptr);
  EXPECT_GT(session.good()->step->step_time_s, 0);
  EXPECT_FALSE(session.good()->live_bytes.empty());
}

TEST(Session, KeepsTheLastGoodAnswerWhileTheInputHasErrors) {
  Session session(small_state(), {});
  ASSERT_TRUE(settles(session));
  const AnswerPtr good = session.good();
  session.set("expert_parallel", "3");
  ASSERT_TRUE(fails(session));
  EXPECT_EQ(session.good(), good);
  EXPECT_TRUE(session.is_stale());
  EXPECT_THAT(session.newest()->diagnostics, ::testing::Not(::testing::IsEmpty()));
  session.undo();
  ASSERT_TRUE(settles(session));
  EXPECT_FALSE(session.is_stale());
}

TEST(Session, SaysWhereAMissingFileIsMissed) {
  Session session(small_state(), {});
  session.set_model("nowhere/config.json");
  ASSERT_TRUE(wait_until([&] { return session.newest() && session.newest()->text.model == "nowhere/config.json"; }));
  ASSERT_EQ(session.newest()->diagnostics.size(), 1U);
  EXPECT_THAT(session.newest()->diagnostics[0].message, ::testing::HasSubstr("nowhere/config.json"));
}

TEST(Session, UndoesAndRedoesEdits) {
  Session session(small_state(), {});
  const ScenarioText first = session.text();
  session.set("micro_batch", "2");
  session.set("sequence", "8192");
  EXPECT_EQ(session.text().settings.at("sequence"), "8192");
  session.undo();
  EXPECT_EQ(session.text().settings.count("sequence"), 0U);
  session.undo();
  EXPECT_EQ(session.text(), first);
  EXPECT_FALSE(session.can_undo());
  session.redo();
  EXPECT_EQ(session.text().settings.at("micro_batch"), "2");
  session.set("micro_batch", "4");
  EXPECT_FALSE(session.can_redo());
}

TEST(Session, TakesADragForOneStep) {
  Session session(small_state(), {});
  for (const char* value : {"2", "3", "4", "5"}) session.set("micro_batch", value);
  session.undo();
  EXPECT_EQ(session.text().settings.count("micro_batch"), 0U);
}

TEST(Session, SavesAndReopens) {
  const QTemporaryDir folder;
  const QString path = folder.filePath("a.plimsoll");
  SessionState state = small_state();
  state.compared =
      scenario_text("mixtral-8x7b", "8xh200", {{"zero.stage", "3"}, {"routing", R"({"kind":"balanced"})"}});
  state.compared->nodes = 2;
  state.tab = 4;
  EXPECT_EQ(save_session(state, path), "");
  QString error;
  const auto read = open_session(path, &error);
  ASSERT_TRUE(read) << error.toStdString();
  EXPECT_EQ(*read, state);
  EXPECT_FALSE(open_session(folder.filePath("none.plimsoll"), &error));
  EXPECT_NE(error, "");
  EXPECT_NE(save_session(state, folder.filePath("no/folder/a.plimsoll")), "");
}

TEST(Session, RefusesWhatIsNoSession) {
  for (const char* text : {"", "{", "[]", "{}", R"({"plimsoll_session": 2, "scenario": {}})",
                           R"({"plimsoll_session": 1, "scenario": {"model": 3, "cluster": "8xh100"}})"}) {
    QString error;
    EXPECT_FALSE(read_session(text, &error)) << text;
    EXPECT_NE(error, "") << text;
  }
}

TEST(Session, AutosavesEveryEdit) {
  const QTemporaryDir folder;
  const QString path = folder.filePath("autosave.plimsoll");
  Session session(small_state(), path);
  session.set("micro_batch", "7");
  ASSERT_TRUE(wait_until([&] {
    QString error;
    const auto saved = open_session(path, &error);
    return saved && saved->scenario.settings.count("micro_batch") != 0;
  }));
}

TEST(Session, TellsFilesApartByTheirKeys) {
  const std::string root = PLIMSOLL_SOURCE_DIR;
  const auto kind = [&](const char* path) { return kind_of_file(QString::fromStdString(root + path)); };
  EXPECT_EQ(kind("/configs/models/mixtral-8x7b.json"), FileKind::model);
  EXPECT_EQ(kind("/configs/clusters/dgx-h100.json"), FileKind::cluster);
  EXPECT_EQ(kind("/configs/examples/blog_moe.json"), FileKind::ds_config);
  EXPECT_EQ(kind("/README.md"), FileKind::unknown);
  EXPECT_EQ(kind("/nowhere"), FileKind::unknown);
}

TEST(Session, SaysWhatIsWrongWithADroppedFile) {
  Session session(small_state(), {});
  ASSERT_TRUE(settles(session));
  session.open_any(QString::fromStdString(std::string(PLIMSOLL_SOURCE_DIR) + "/configs/examples/blog_moe.json"));
  ASSERT_TRUE(fails(session));
  const Diagnostics& diagnostics = session.newest()->diagnostics;
  EXPECT_TRUE(std::any_of(diagnostics.begin(), diagnostics.end(),
                          [](const Diagnostic& d) { return d.code == "ds.unknown" && d.place.line == 5; }));
}

TEST(Evaluator, DropsWhatANewerEditHasOvertaken) {
  std::atomic<std::uint64_t> newest_delivered = 0;
  std::atomic<bool> in_order = true;
  Evaluator evaluator([&](const AnswerPtr& answer) {
    if (answer->generation < newest_delivered) in_order = false;
    newest_delivered = answer->generation;
  });
  std::uint64_t last = 0;
  for (int i = 1; i <= 40; ++i)
    last = evaluator.ask(scenario_text("llama-3.2-1b", "8xh100", {{"micro_batch", std::to_string(i)}}));
  ASSERT_TRUE(wait_until([&] { return newest_delivered == last; }));
  EXPECT_TRUE(in_order);
  const EvaluatorCounts counts = evaluator.counts();
  EXPECT_EQ(counts.asked, 40U);
  EXPECT_GT(counts.skipped + counts.stale, 0U);
}

TEST(Evaluator, RemembersSettledAnswers) {
  AnswerPtr newest;
  std::mutex mutex;
  Evaluator evaluator([&](const AnswerPtr& answer) {
    const std::lock_guard lock(mutex);
    newest = answer;
  });
  const auto wait_for = [&](std::uint64_t generation) {
    return wait_until([&] {
      const std::lock_guard lock(mutex);
      return newest && newest->generation == generation && newest->remedy_known;
    });
  };
  const ScenarioText text = scenario_text("llama-3.2-1b", "8xh100", {});
  ASSERT_TRUE(wait_for(evaluator.ask(text)));
  ASSERT_TRUE(wait_for(evaluator.ask(scenario_text("llama-3.2-1b", "8xh100", {{"micro_batch", "2"}}))));
  ASSERT_TRUE(wait_for(evaluator.ask(text)));
  EXPECT_EQ(evaluator.counts().remembered, 1U);
  evaluator.forget();
  ASSERT_TRUE(wait_for(evaluator.ask(text)));
  EXPECT_EQ(evaluator.counts().remembered, 1U);
}

TEST(Evaluator, GivesUpWhatANewerEditHasMadeNeedless) {
  std::stop_source source;
  source.request_stop();
  const std::stop_token unwanted = source.get_token();
  const ScenarioText text = small_state().scenario;
  {
    const Wanted wanted(unwanted);
    EXPECT_THROW(answer_quickly(text, 0), GivenUp);
  }
  const AnswerPtr quick = answer_quickly(text, 0);
  const auto never = [](const AnswerPtr&) {
    ADD_FAILURE() << "delivered";
    return true;
  };
  EXPECT_THROW(settle_and_simulate(*quick, unwanted, never), GivenUp);
  EXPECT_EQ(settle(*quick)->phases.back().total(), answer_quickly(text, 1)->phases.back().total());
}

TEST(Evaluator, GivesUpLookingAheadWhereSomethingElseIsAsked) {
  std::atomic<std::uint64_t> newest_delivered = 0;
  Evaluator evaluator([&](const AnswerPtr& answer) { newest_delivered = answer->generation; });
  for (int i = 1; i <= 100 && evaluator.counts().given_up == 0; ++i) {
    evaluator.prepare(
        {scenario_text("deepseek-v3", "64xh100", {{"zero.stage", "3"}, {"sequence", std::to_string(i)}})});
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    const auto asked = evaluator.ask(scenario_text("llama-3.2-1b", "8xh100", {{"sequence", std::to_string(i)}}));
    ASSERT_TRUE(wait_until([&] { return newest_delivered == asked; }));
  }
  EXPECT_GT(evaluator.counts().given_up, 0U);
}

TEST(Evaluator, RemembersWhatADragHasPassed) {
  std::atomic<std::uint64_t> newest_delivered = 0;
  Evaluator evaluator([&](const AnswerPtr& answer) { newest_delivered = answer->generation; });
  bool known = false;
  for (int i = 1; i <= 100 && !known; ++i) {
    const auto at = [&](const char* stage) {
      return scenario_text("llama-3.1-70b", "64xh100", {{"zero.stage", stage}, {"sequence", std::to_string(64 * i)}});
    };
    evaluator.ask(at("3"));
    std::this_thread::sleep_for(std::chrono::milliseconds(3));  // begun, and overtaken before it ends
    const auto overtaking = evaluator.ask(at("2"));
    ASSERT_TRUE(wait_until([&] { return newest_delivered == overtaking; }));
    const std::uint64_t stale = evaluator.counts().stale, remembered = evaluator.counts().remembered;
    const auto back = evaluator.ask(at("3"));
    ASSERT_TRUE(wait_until([&] { return newest_delivered == back; }));
    known = stale > 0 && evaluator.counts().remembered > remembered;
  }
  EXPECT_TRUE(known);
}

TEST(Session, LooksAheadAtTheNeighboursOfTheValueThatMoves) {
  Session session(small_state(), {});
  ASSERT_TRUE(settles(session));
  session.set("micro_batch", "2");
  ASSERT_TRUE(settles(session));
  testing::wait_until([] { return false; }, 2);  // time to look ahead
  session.set("micro_batch", "3");
  ASSERT_TRUE(settles(session));
  EXPECT_EQ(session.counts().remembered, 1U);
  EXPECT_EQ(session.good()->ledger->allocated_peak.value, answer_fully(session.text())->ledger->allocated_peak.value);
}

TEST(Session, LooksAheadAtEveryStopOfAControlOnceTheAnswerIsWhole) {
  Session session(small_state(), {});
  ASSERT_TRUE(settles(session));
  session.expect("sequence");
  testing::wait_until([] { return false; }, 2);  // time to look ahead
  session.set("sequence", "32768");              // far from the default, so that its program was not kept
  ASSERT_TRUE(settles(session));
  EXPECT_EQ(session.counts().remembered, 1U);
  const AnswerPtr alone = answer_fully(session.text());
  EXPECT_EQ(session.good()->ledger->device_peak.value, alone->ledger->device_peak.value);
  EXPECT_EQ(session.good()->step->timeline.step_time, alone->step->timeline.step_time);
}

TEST(Session, LooksAheadAtTheNeighboursOfControlsThatNobodyHasTouched) {
  Session session(small_state(), {});
  ASSERT_TRUE(settles(session));
  testing::wait_until([] { return false; }, 3);  // time to look ahead
  session.set("micro_batch", "2");
  ASSERT_TRUE(settles(session));
  EXPECT_EQ(session.counts().remembered, 1U);
  EXPECT_EQ(session.good()->ledger->allocated_peak.value, answer_fully(session.text())->ledger->allocated_peak.value);
}

TEST(Session, LooksAheadAtTheModelAndTheClusterUnderTheHand) {
  Session session(small_state(), {});
  ASSERT_TRUE(settles(session));
  session.expect_model("olmoe-1b-7b");
  testing::wait_until([] { return false; }, 2);  // time to look ahead
  session.set_model("olmoe-1b-7b");
  ASSERT_TRUE(settles(session));
  EXPECT_EQ(session.counts().remembered, 1U);
  session.expect_cluster("16xh100", 0);
  testing::wait_until([] { return false; }, 2);
  session.set_cluster("16xh100", 0);
  ASSERT_TRUE(settles(session));
  EXPECT_EQ(session.counts().remembered, 2U);
  EXPECT_EQ(session.good()->ledger->allocated_peak.value, answer_fully(session.text())->ledger->allocated_peak.value);
}

TEST(Measured, RecordsAreToldApartAndBrokenOnesSayWhere) {
  const QTemporaryDir folder;
  const auto write = [&](const char* name, const char* text) {
    QFile file(folder.filePath(name));
    EXPECT_TRUE(file.open(QIODevice::WriteOnly));
    file.write(text);
    return folder.filePath(name).toStdString();
  };
  const ScenarioText text = small_state().scenario;
  const MeasuredRecord profile = compare_with_file(text, write("profile.json", R"({"traceEvents": [
      {"ph": "X", "cat": "kernel", "name": "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", "ts": 10, "dur": 90, "args": {"stream": 7}}]})"));
  ASSERT_NE(profile.profile, nullptr);
  EXPECT_NEAR(profile.profile->measured.of(OpClass::gemm).seconds, 90e-6, 1e-9);
  for (const char* broken : {"", "{", R"({"traceEvents": 3})", R"({"events": [[2, 3]]})"}) {
    const MeasuredRecord record = compare_with_file(text, write("broken.json", broken));
    EXPECT_TRUE(has_errors(record.diagnostics)) << broken;
    EXPECT_EQ(record.profile, nullptr) << broken;
  }
  EXPECT_TRUE(has_errors(compare_with_file(text, "nowhere.json").diagnostics));
}

TEST(Controls, SayWhyAValueIsNotLegal) {
  const AnswerPtr answer = answer_fully(scenario_text("mixtral-8x7b", "8xh200", {{"zero.stage", "3"}}));
  ASSERT_FALSE(answer->has_errors());
  const ControlState& experts = answer->controls.at("expert_parallel");
  const auto& values = find_control("expert_parallel")->values;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i] == "16") {
      EXPECT_THAT(experts.refused[i], ::testing::HasSubstr("16"));
    }
  EXPECT_EQ(answer->controls.at("zero.stage").value, "3");
  EXPECT_TRUE(answer->controls.at("zero.stage").stated);
  EXPECT_FALSE(answer->controls.at("micro_batch").stated);
  const auto& worlds = find_control("world_size")->values;
  EXPECT_THAT(answer->controls.at("world_size").refused[worlds.size() - 1],
              ::testing::HasSubstr("the cluster has 8 GPUs"));
}

TEST(Controls, AreKeysThatThePlanKnows) {
  for (const Control& control : controls()) {
    ASSERT_FALSE(control.values.empty());
    EXPECT_TRUE(control.words.empty() || control.words.size() == control.values.size()) << control.key;
    const Inputs inputs(options_of(scenario_text("mixtral-8x7b", "8xh200", {{control.key, control.values.front()}})));
    for (const Diagnostic& diagnostic : inputs.diagnostics())
      EXPECT_THAT(diagnostic.code, ::testing::Not(::testing::HasSubstr("unknown"))) << control.key;
  }
}

TEST(ScenarioText, IsACommandLineThatAShellReads) {
  ScenarioText text = scenario_text("it's.json", "8xh100", {{"recompute", R"({"every":2})"}});
  text.nodes = 2;
  EXPECT_EQ(command_line_of(text, "ledger"),
            R"(plimsoll ledger --model 'it'\''s.json' --cluster 8xh100 --nodes 2 --set 'recompute={"every":2}')");
}

}  // namespace
}  // namespace plimsoll::gui
