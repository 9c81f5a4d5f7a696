// Does each rule notice what it forbids, and let pass what it allows?  Sources made up for the purpose.
#include "tests/structure/rules.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace plimsoll::structure {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

Source source(const std::string& path, const std::string& text) { return {path, split_lines(text)}; }

TEST(Arrows, MayPointDown) {
  EXPECT_THAT(check_arrows(source("planner/spec/a.hpp", "#include \"planner/base/check.hpp\"\n#include <vector>")),
              IsEmpty());
  EXPECT_THAT(check_arrows(source("planner/search/a.cpp", "#include \"planner/spec/plan.hpp\"")), IsEmpty());
  EXPECT_THAT(check_arrows(source("planner/step/engines/a.cpp", "#include \"planner/step/program.hpp\"")), IsEmpty());
  EXPECT_THAT(check_arrows(source("planner/cli/a.cpp", "#include \"simulator/simulate.hpp\"")), IsEmpty());
  EXPECT_THAT(check_arrows(source("simulator/a.cpp", "#include \"planner/account/ledger.hpp\"")), IsEmpty());
  EXPECT_THAT(check_arrows(source("runtime/cli/a.cpp", "#include \"planner/spec/plan.hpp\"")), IsEmpty());
  EXPECT_THAT(check_arrows(source("gui/a.cpp", "#include \"planner/cli/evaluate.hpp\"")), IsEmpty());
}

TEST(Arrows, MayNotPointUpOrSideways) {
  EXPECT_THAT(check_arrows(source("planner/base/a.hpp", "// a\n#include \"planner/spec/plan.hpp\"")),
              ElementsAre("planner/base/a.hpp:2: planner/base may not include planner/spec/plan.hpp: besides itself it "
                          "may use nothing else"));
  EXPECT_THAT(check_arrows(source("planner/step/a.cpp", "#include \"planner/account/ledger.hpp\"")), SizeIs(1));
  EXPECT_THAT(check_arrows(source("planner/account/a.cpp", "#include \"planner/search/pareto.hpp\"")), SizeIs(1));
  EXPECT_THAT(check_arrows(source("planner/search/a.cpp", "#include \"simulator/simulate.hpp\"")), SizeIs(1));
  EXPECT_THAT(check_arrows(source("planner/search/a.cpp", "#  include  \"planner/cli/table.hpp\"")), SizeIs(1));
  EXPECT_THAT(check_arrows(source("gui/a.cpp", "#include \"planner/cli/table.hpp\"")), SizeIs(1));
  EXPECT_THAT(check_arrows(source("calibrate/fit/a.cpp", "#include \"planner/account/ledger.hpp\"")), SizeIs(1));
}

TEST(Arrows, HideModelAndPlanFromInterpreters) {
  for (const char* folder : {"planner/account", "simulator", "runtime/host"}) {
    for (const char* header : {"model", "plan", "scenario"}) {
      EXPECT_THAT(check_arrows(source(std::string(folder) + "/a.cpp",
                                      "#include \"planner/spec/" + std::string(header) + ".hpp\"")),
                  ElementsAre(HasSubstr("is an interpreter")));
    }
    EXPECT_THAT(check_arrows(source(std::string(folder) + "/a.cpp", "#include \"planner/spec/cluster.hpp\"")),
                IsEmpty());
  }
}

TEST(Arrows, NeedPathsFromTheRoot) {
  EXPECT_THAT(check_arrows(source("planner/spec/a.cpp", "#include \"plan.hpp\"")),
              ElementsAre(HasSubstr("not a path from the root")));
  EXPECT_THAT(check_arrows(source("planner/spec/a.cpp", "#include <planner/spec/plan.hpp>")),
              ElementsAre(HasSubstr("with quotes")));
  EXPECT_THAT(check_arrows(source("planner/basement/a.cpp", "")), ElementsAre(HasSubstr("no folder of the design")));
}

TEST(HeavyHeaders, StayInTheirPlaces) {
  const auto count = [](const std::string& path, const std::string& header) {
    return check_heavy_headers(source(path, "#include <" + header + ">")).size();
  };
  EXPECT_EQ(count("planner/spec/read_plan.cpp", "nlohmann/json.hpp"), 0U);
  EXPECT_EQ(count("planner/spec/read_plan.hpp", "nlohmann/json.hpp"), 1U);
  EXPECT_EQ(count("planner/step/build.cpp", "nlohmann/json.hpp"), 1U);
  EXPECT_EQ(count("planner/spec/topology.cpp", "boost/graph/adjacency_list.hpp"), 0U);
  EXPECT_EQ(count("planner/spec/read_cluster.cpp", "boost/graph/adjacency_list.hpp"), 1U);
  EXPECT_EQ(count("calibrate/fit/fit.cpp", "Eigen/Dense"), 0U);
  EXPECT_EQ(count("planner/account/work.cpp", "Eigen/Dense"), 1U);
  EXPECT_EQ(count("gui/window.cpp", "QWidget"), 0U);
  EXPECT_EQ(count("planner/cli/main.cpp", "QtWidgets/QWidget"), 1U);
  EXPECT_EQ(count("runtime/cuda/backend.cpp", "cuda_runtime.h"), 0U);
  EXPECT_EQ(count("runtime/host/backend.cpp", "cuda_runtime.h"), 1U);
  EXPECT_EQ(count("simulator/simulate.cpp", "nccl.h"), 1U);
  EXPECT_EQ(count("planner/cli/main.cpp", "CLI/CLI.hpp"), 0U);
  EXPECT_EQ(count("planner/search/search.cpp", "CLI/CLI.hpp"), 1U);
  EXPECT_EQ(count("planner/search/search.cpp", "gtest/gtest.h"), 1U);
  EXPECT_EQ(count("planner/search/search.cpp", "queue"), 0U);
}

TEST(HeavyHeaders, LeaveBaseToTheStandardLibraryAndFmt) {
  EXPECT_THAT(check_heavy_headers(
                  source("planner/base/a.cpp", "#include <fmt/format.h>\n#include <vector>\n#include <cstdio>")),
              IsEmpty());
  EXPECT_THAT(check_heavy_headers(source("planner/base/a.cpp", "#include <unistd.h>")), SizeIs(1));
  EXPECT_THAT(check_heavy_headers(source("planner/base/a.cpp", "#include <sys/mman.h>")), SizeIs(1));
}

TEST(Shape, WantsAnOpeningCommentAndOnePragma) {
  EXPECT_THAT(check_shape(source("a.cpp", "// What is it?\nint a;")), IsEmpty());
  EXPECT_THAT(check_shape(source("a.cpp", "int a;")),
              ElementsAre("a.cpp:1: a source opens with a comment: the question it answers"));
  EXPECT_THAT(check_shape(source("a.cpp", "")), SizeIs(1));
  EXPECT_THAT(check_shape(source("a.hpp", "// What is it?\nint a;")),
              ElementsAre("a.hpp:1: a header has #pragma once"));
  EXPECT_THAT(check_shape(source("a.hpp", "// What is it?\n#pragma once")), IsEmpty());
}

TEST(Shape, LimitsTheLines) {
  std::string text = "// Long.\n";
  for (int i = 1; i < 450; ++i) text += "\n";
  EXPECT_THAT(check_shape(source("a.cpp", text)), IsEmpty());
  EXPECT_THAT(check_shape(source("a.cpp", text + "\n")),
              ElementsAre("a.cpp:451: 451 lines; at most 450: split the file"));
}

TEST(Shape, ForbidsConditionalsOnDevices) {
  for (const char* line :
       {"#ifdef PLIMSOLL_CUDA", "#if defined(HAVE_NCCL)", "# ifndef USE_QT", "#if X\n#elif __CUDACC__"}) {
    EXPECT_THAT(check_shape(source("a.cpp", std::string("// A.\n") + line)),
                ElementsAre(HasSubstr("never a conditional")))
        << line;
  }
  EXPECT_THAT(check_shape(source("a.cpp", "// A CUDA device.\n#ifdef __linux__")), IsEmpty());
}

TEST(PortableText, ForbidsPathsOfOneMachine) {
  for (const char* line :
       {"// see /home/me/x", "\"/work/data\"", "(/root/x)", "../shared/x", "// C:\\x", "/Users/me"}) {
    EXPECT_THAT(check_portable_text(source("a.cpp", line)), SizeIs(1)) << line;
  }
  for (const char* line : {"network/home/x", "a/work/b", "https://example.org/home/x", "model.layers.0.mlp.shared/x"}) {
    EXPECT_THAT(check_portable_text(source("a.cpp", line)), IsEmpty()) << line;
  }
}

TEST(TemporaryFiles, AreInAFolderOfTheTestAlone) {
  for (const char* line : {"::testing::TempDir() + \"a\"", "fs::temp_directory_path() / \"a\"", "open(\"/tmp/a\")"}) {
    EXPECT_THAT(check_temporary_files(source("tests/a_test.cpp", line)), SizeIs(1)) << line;
    EXPECT_THAT(check_temporary_files(source("tests/support/temporary_folder.hpp", line)), IsEmpty()) << line;
  }
  EXPECT_THAT(check_temporary_files(source("tests/a_test.cpp", "const TemporaryFolder folder;")), IsEmpty());
}

}  // namespace
}  // namespace plimsoll::structure
