// plimsoll-run as its users start it: steps, checkpoints that come back whole, elsewhere and to the same losses, and how it
// ends where input or machine are at fault.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <regex>
#include <thread>

#include "tests/support/temporary_folder.hpp"

namespace plimsoll {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

struct Ended {
  int code = -1;
  std::string text;  ///< both outputs
  /// "5.5535" of each step's line
  std::vector<std::string> losses() const {
    std::vector<std::string> result;
    static const std::regex loss(R"(step +\d+  loss (\S+))");
    for (std::sregex_iterator match(text.begin(), text.end(), loss), end; match != end; ++match)
      result.push_back((*match)[1]);
    return result;
  }
};

Ended start(const std::string& command_line) {
  const std::string command = "{ " + command_line + "; } 2>&1";
  Ended ended;
  FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> buffer{};
  while (const std::size_t size = std::fread(buffer.data(), 1, buffer.size(), pipe))
    ended.text.append(buffer.data(), size);
  const int status = pclose(pipe);
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ended;
}

/// @param before what stands before the program: "ulimit -f 100;", "mpirun -n 2"
Ended run(const std::string& arguments, const std::string& before = "") {
  return start(before + " " + PLIMSOLL_RUN_BINARY + " " + arguments);
}

class Program : public ::testing::Test {
 protected:
  Program() {
    folder_.write("tiny.json",
                  R"({"model_type": "mixtral", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
               "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 24, "num_local_experts": 4,
               "num_experts_per_tok": 2, "vocab_size": 256, "output_router_logits": true, "router_aux_loss_coef": 0.02,
               "initializer_range": 0.1, "rope_theta": 100.0, "tie_word_embeddings": false})");
    std::ofstream text(file("text"));
    for (int i = 0; i < 400; ++i) text << "the loss falls on text that says the same again, line " << i % 7 << "\n";
  }
  std::string file(const std::string& name) const { return folder_.path(name); }
  /// The arguments common to all runs, on `world` ranks.
  std::string job(int world, const std::string& more, const std::string& data = "text") const {
    return "--model " + file("tiny.json") + " --cluster " + std::to_string(world) +
           "xa100-80 --set sequence=32 --data " + file(data) + " --lr 3e-3 " + more;
  }
  test::TemporaryFolder folder_;
};

TEST_F(Program, LowersTheLossOnText) {
  const Ended ended = run(job(2, "--steps 60 --set expert_parallel=2 --set moe.capacity_factor=2"));
  ASSERT_EQ(ended.code, 0) << ended.text;
  ASSERT_EQ(ended.losses().size(), 60U);
  EXPECT_GT(std::stod(ended.losses().front()), 5.0);
  EXPECT_LT(std::stod(ended.losses().back()), 3.0);
}

TEST_F(Program, GoesOnFromACheckpointToTheSameLossesOnOtherRanksToo) {
  const std::string save = " --checkpoints " + file("saved");
  const std::string fp32 = "--set precision=fp32 --set moe.capacity_factor=4 ";
  const Ended whole = run(job(2, fp32 + "--set expert_parallel=2 --steps 8"));
  ASSERT_EQ(whole.losses().size(), 8U) << whole.text;
  ASSERT_EQ(run(job(2, fp32 + "--set expert_parallel=2 --steps 5" + save)).code, 0);
  const std::vector<std::string> all = whole.losses(), rest(all.begin() + 5, all.end());
  for (const std::string& elsewhere :
       {job(2, fp32 + "--set expert_parallel=2"), job(2, fp32), job(2, fp32 + "--set zero.stage=1"),
        job(1, fp32 + "--set gradient_accumulation=2")}) {
    fs::remove_all(file("saved/step-00000008"));
    const Ended resumed = run(elsewhere + " --steps 8 --resume" + save);
    EXPECT_EQ(resumed.code, 0) << resumed.text;
    EXPECT_EQ(resumed.losses(), rest) << elsewhere;
  }
}

TEST_F(Program, LeavesTheOldCheckpointWhereTheDiskIsFull) {
  const std::string save = " --checkpoints " + file("saved") + " --checkpoint-every 2";
  ASSERT_EQ(run(job(2, "--steps 2" + save)).code, 0);
  const auto before = fs::file_size(file("saved/step-00000002/rank-00001.state"));
  // No file may grow beyond 8 KiB: writing ends as on a full disk.
  const Ended ended = run(job(2, "--steps 4 --resume" + save), "trap '' XFSZ; ulimit -f 8;");
  EXPECT_EQ(ended.code, 3) << ended.text;
  EXPECT_THAT(ended.text, HasSubstr("the checkpoint before it is intact"));
  EXPECT_EQ(fs::file_size(file("saved/step-00000002/rank-00001.state")), before);
  EXPECT_FALSE(fs::exists(file("saved/step-00000004")));
  EXPECT_EQ(run(job(2, "--steps 3 --resume --checkpoints " + file("saved"))).code, 0);
}

TEST_F(Program, RefusesADamagedCheckpoint) {
  const std::string save = " --checkpoints " + file("saved");
  ASSERT_EQ(run(job(2, "--steps 1" + save)).code, 0);
  const std::string damaged = file("saved/step-00000001/rank-00001.state");
  fs::resize_file(damaged, fs::file_size(damaged) - 5);
  Ended ended = run(job(2, "--steps 2 --resume" + save));
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.text, HasSubstr("rank-00001.state: is truncated or damaged"));
  fs::remove(damaged);
  ended = run(job(2, "--steps 2 --resume" + save));
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.text, HasSubstr("is missing"));
}

TEST_F(Program, RefusesBadInputByName) {
  std::ofstream(file("short")) << "too short";
  std::ofstream(file("cut.tokens"), std::ios::binary) << std::string(4 * 64 + 3, '\0');
  const std::array<std::int32_t, 64> beyond{0, 7, 256};
  std::ofstream(file("beyond.tokens"), std::ios::binary)
      .write(reinterpret_cast<const char*>(beyond.data()), sizeof beyond);
  const std::array<std::pair<std::string, const char*>, 6> cases{{
      {job(1, "", "short"), "one sequence and its labels are 33"},
      {job(1, "", "cut.tokens"), "ends within a token"},
      {job(1, "", "beyond.tokens"), "token 2 of "},
      {job(1, "--set engine=fsdp2"), "this program runs engine plimsoll"},
      {"--model llama-3.1-405b --cluster 1xa100-80", "arena of a rank"},
      {"--model deepseek-v2 --cluster 1xa100-80", "no latent or linear attention"},
  }};
  for (const auto& [arguments, expected] : cases) {
    const Ended ended = run(arguments);
    EXPECT_EQ(ended.code, 1) << arguments << ended.text;
    EXPECT_THAT(ended.text, HasSubstr(expected));
  }
  EXPECT_EQ(run("--steps 3").code, 2);
  EXPECT_EQ(run(job(1, "", "nowhere")).code, 3);
}

TEST_F(Program, WritesALogThatComparesToTheByte) {
  for (const std::string keys : {"--set zero.stage=3", "--set zero.stage=1 --set recompute=full"}) {
    ASSERT_EQ(run(job(2, keys + " --steps 2 --log " + file("log"))).code, 0);
    const Ended compared = start(fmt::format(
        "{} compare --model {} --cluster 2xa100-80 --set engine=plimsoll --set sequence=32 {} --run-log {} --within 0",
        PLIMSOLL_BINARY, file("tiny.json"), keys, file("log")));
    EXPECT_EQ(compared.code, 0) << compared.text;
    EXPECT_THAT(compared.text, HasSubstr("2 steps on the host backend"));
  }
}

TEST_F(Program, RefusesToGoOnWithTheLogOfAnotherProgram) {
  const std::string more = " --checkpoints " + file("saved") + " --log " + file("log");
  ASSERT_EQ(run(job(1, "--steps 1" + more)).code, 0);
  EXPECT_EQ(run(job(1, "--steps 2 --resume" + more)).code, 0);
  const Ended ended = run(job(1, "--steps 3 --resume --set recompute=full" + more));
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.text, HasSubstr("is the log of program"));
}

/// What all ranks end with once more rows arrive at one of them than the plan has room for.
const char* const beyond_the_bound =
    "rank [01]: [0-9]+ rows arrive for this rank's experts, but its buffer \"routing weights\" has room for 96 "
    "\\(1.50 x the mean of 64\\): .*moe.capacity_factor=1\\.[0-9]+ holds this step, 2 any routing";

/// Its routing leaves the balance after some steps.
const char* const skewing = "--steps 200 --seed 4 --set expert_parallel=2 --set moe.capacity_factor=1.5 --timeout 20";

TEST_F(Program, EndsWithTheBoundOnceTheRoutingExceedsIt) {
  const Ended ended = run(job(2, skewing));
  EXPECT_EQ(ended.code, 3);
  EXPECT_THAT(ended.text, ::testing::ContainsRegex(beyond_the_bound));
  EXPECT_FALSE(ended.losses().empty()) << "it ends at the first step, not once the routing has moved";
  EXPECT_EQ(run(job(2, "--steps 40 --seed 4 --set expert_parallel=2 --set moe.capacity_factor=2")).code, 0);
}

/// Two processes that hold together by what torchrun or Slurm tells them, as this test tells them.
class Launched : public Program {
 protected:
  static std::string torchrun(int rank) {
    return fmt::format("RANK={} WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={} {}", rank, port(),
                       PLIMSOLL_RUN_BINARY);
  }
  static std::string slurm(int rank) {
    return fmt::format("SLURM_PROCID={} SLURM_NTASKS=2 SLURM_STEP_NODELIST=127.0.0.1 PLIMSOLL_PORT={} {}", rank, port(),
                       PLIMSOLL_RUN_BINARY);
  }
  /// Rank 1 beside rank 0, whose output and exit code count; `meanwhile` may strike at $second.
  Ended both(std::string (*launcher)(int), const std::string& arguments, const std::string& meanwhile = "") const {
    return start(
        fmt::format("{} {} > {} 2>&1 & second=$!; {} timeout 60 sh -c '{} {}'; code=$?; kill -9 $second; exit "
                    "$code",
                    launcher(1), arguments, file("second"), meanwhile, launcher(0), arguments));
  }

 private:
  static int port() { return 20000 + static_cast<int>(getpid() % 20000); }
};

TEST_F(Launched, ComputeTheLossesOfThreads) {
  const std::string arguments =
      job(2, "--steps 3 --set precision=fp32 --set expert_parallel=2 --set moe.capacity_factor=4");
  const Ended threads = run(arguments);
  for (const auto launcher : {torchrun, slurm}) {
    const Ended processes = both(launcher, arguments);
    EXPECT_EQ(processes.code, 0) << processes.text;
    EXPECT_EQ(processes.losses().size(), 3U);
    EXPECT_EQ(processes.losses(), threads.losses());
  }
}

TEST_F(Launched, EndWithTheNameOfARankThatIsKilledOrHangs) {
  const std::string log = file("log"), long_job = job(2, "--steps 1000000 --timeout 3 --log " + log);
  for (const auto& [signal, words] :
       {std::pair("KILL", "rank 0: rank 1 ended"), {"STOP", "rank 0: waited 3 s for rank 1"}}) {
    fs::remove(log);
    const std::string strike = fmt::format(
        "(while [ ! -s {} ] || [ $(wc -l < {}) -lt 4 ]; do sleep 0.1; done; kill -{} $second) &", log, log, signal);
    const Ended ended = both(torchrun, long_job, strike);
    EXPECT_EQ(ended.code, 3) << ended.text;
    EXPECT_THAT(ended.text, ::testing::AllOf(HasSubstr(words), HasSubstr("at op")));
  }
}

TEST_F(Launched, NameARankThatDoesNotCome) {
  const Ended ended = start(torchrun(0) + " " + job(2, "--timeout 1"));
  EXPECT_EQ(ended.code, 3);
  EXPECT_THAT(ended.text, HasSubstr("of 2 ranks that torchrun started these did not come within 1 s: 1"));
}

class Processes : public Program {
 protected:
  void SetUp() override {
    if (std::system("mpirun --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "no mpirun";
  }
  // Open MPI keeps what its components allocate, from modules that are gone when leaks are looked for, so that no suppression
  // names them.  The program's own leaks show where its ranks are threads or hold together over TCP.
  static constexpr const char* mpirun =
      "ASAN_OPTIONS=detect_leaks=0 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 60 mpirun "
      "--oversubscribe ";
  /// Starts a long job of two processes that note who they are, sends the second one a signal once steps are logged, and waits
  /// for the end.
  Ended after_signal(const std::string& signal) {
    const auto rank = [&](int i) {
      return "-n 1 sh -c 'echo $$ > " + file("process" + std::to_string(i)) + "; exec " + PLIMSOLL_RUN_BINARY + " " +
             job(2, "--steps 1000000 --timeout 4 --log " + file("log")) + "'";
    };
    const std::string strike =
        fmt::format("(while [ ! -s {0} ] || [ $(wc -l < {0}) -lt 4 ]; do sleep 0.1; done; kill -{1} $(cat {2})) & ",
                    file("log"), signal, file("process1"));
    return start(strike + mpirun + rank(0) + " : " + rank(1));
  }
  /// True if a process of the job goes on; what mpirun has killed as it ended may take a while to go on a busy machine.
  bool orphans() const {
    constexpr int most_looks = 100;
    for (int looks = 0; any_runs(); ++looks) {
      if (looks == most_looks) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return false;
  }

 private:
  /// One that has ended may wait, as a zombie, for init to notice.
  bool any_runs() const {
    for (const char* name : {"process0", "process1"}) {
      std::string pid, line;
      std::getline(std::ifstream(file(name)) >> std::ws, pid);
      std::ifstream status("/proc/" + pid + "/status");
      while (std::getline(status, line)) {
        if (line.starts_with("State:") && line.find('Z') == std::string::npos) return true;
      }
    }
    return false;
  }
};

TEST_F(Processes, ComputeTheLossesOfThreads) {
  const std::string arguments =
      job(2, "--steps 3 --set precision=fp32 --set expert_parallel=2 --set moe.capacity_factor=4");
  const Ended threads = run(arguments), processes = run(arguments, mpirun + std::string("-n 2"));
  EXPECT_EQ(processes.code, 0) << processes.text;
  EXPECT_EQ(processes.losses().size(), 3U);
  EXPECT_EQ(processes.losses(), threads.losses());
}

TEST_F(Processes, EndTogetherWhereOneReceivesMoreRowsThanPlanned) {
  const Ended ended = run(job(2, skewing), mpirun + std::string("-n 2"));
  EXPECT_EQ(ended.code, 3) << ended.text;
  EXPECT_THAT(ended.text, ::testing::ContainsRegex(beyond_the_bound));
}

TEST_F(Processes, EndWhereARankIsKilled) {
  const Ended ended = after_signal("KILL");
  EXPECT_NE(ended.code, 0) << ended.text;
  EXPECT_NE(ended.code, 124) << "ended by this test's own timeout";
  EXPECT_FALSE(orphans());
}

TEST_F(Processes, EndWithTheOpWhereARankHangs) {
  const Ended ended = after_signal("STOP");
  EXPECT_NE(ended.code, 0);
  EXPECT_NE(ended.code, 124) << "ended by this test's own timeout";
  EXPECT_THAT(ended.text, ::testing::AllOf(HasSubstr("rank 0: waited 4 s for rank 1"), HasSubstr("at op")));
  EXPECT_FALSE(orphans());
}

}  // namespace
}  // namespace plimsoll
