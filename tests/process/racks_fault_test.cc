// Jobs that span racks, and a rack that dies, falls silent, loses a worker, or fits ill.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <utility>

#include "tests/process/rack_authority.h"
#include "tests/process/rack_process.h"
#include "tests/process/training_process.h"

namespace phub::process {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t kRacks = 3;
constexpr DurationNs kPatience = 20 * kSecond;
// liveness_timeout (2 s), the diagnosis, and what a busy machine adds.
constexpr DurationNs kNoticeLimit = 6 * kSecond;

std::vector<std::string> SmallAnd(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"--cores", "1", "--pin", "off"});
  return arguments;
}

class RackFaults : public ::testing::Test {
 protected:
  explicit RackFaults(std::vector<std::string> more = {})
      : racks_(kRacks, SmallAnd(std::move(more)), RackProcess::Kind::kManyRacks) {}
  void SetUp() override { ASSERT_TRUE(racks_.serving()) << racks_.Outputs(); }

  std::vector<Process> Train(std::uint64_t iterations, const std::string& plan = "ring") {
    std::vector<Process> trainers;
    for (std::uint32_t rank = 0; rank < 2 * kRacks; ++rank) {
      trainers.push_back(StartTrainer({.endpoint = racks_.endpoint(rank / 2),
                                       .job = "training",
                                       .rank = rank,
                                       .world_size = 2 * kRacks,
                                       .iterations = iterations,
                                       .more = {"--plan", plan},
                                       .environment = environment_}));
    }
    return trainers;
  }
  void WaitUntilTheyTrain(std::vector<Process>& trainers) {
    for (Process& trainer : trainers) {
      ASSERT_TRUE(WaitForIteration(trainer, 20, kPatience))
          << trainer.Outputs() << racks_.Outputs();
    }
  }
  using Words = std::vector<std::string>;
  // What workers of other racks say, and those of `rack`: for them its daemon is gone, and no more.
  std::vector<Words> WordsBut(std::size_t rack, const Words& others) const {
    std::vector<Words> words(kRacks, others);
    words[rack] = {racks_.endpoint(rack), "training"};
    return words;
  }
  // Every worker but `but` ends in time with an error that holds its rack's words.
  void ExpectVerdict(std::vector<Process>& trainers, const std::vector<Words>& words_of_rack,
                     std::size_t but = SIZE_MAX) {
    const SystemClock clock;
    const TimeNs deadline = clock.Now() + kNoticeLimit;
    for (std::size_t i = 0; i < trainers.size(); ++i) {
      if (i == but) continue;
      const auto exit = trainers[i].Wait(std::max<DurationNs>(0, deadline - clock.Now()));
      ASSERT_TRUE(exit.has_value()) << "hangs: " << trainers[i].Outputs() << racks_.Outputs();
      EXPECT_EQ(exit, Exit::WithCode(1)) << trainers[i].Outputs();
      for (const std::string& word : words_of_rack[i / 2]) {
        EXPECT_THAT(VerdictOf(trainers[i]), HasSubstr(word));
      }
    }
  }
  void ExpectMemoryBack(std::size_t rack) {
    const SystemClock clock;
    const TimeNs deadline = clock.Now() + 5 * kSecond;
    Finished answer;
    do {
      answer = racks_.Ask(rack, {"job", "get", "training", "-o", "json"}, environment_);
      if (answer.output.find("\"memory_bytes\": \"0\"") != std::string::npos) return;
    } while (clock.Now() < deadline);
    ADD_FAILURE() << racks_.endpoint(rack) << ": " << answer.output << answer.error;
  }
  std::uint64_t Counted(std::size_t rack, const std::string& counter) {
    const std::string stats = racks_.Ask(rack, {"stats", "--all"}, environment_).output;
    const std::size_t at = stats.find(counter);
    EXPECT_NE(at, std::string::npos) << counter << " is not in " << stats;
    if (at == std::string::npos) return UINT64_MAX;
    return std::stoull(stats.substr(stats.rfind(' ', stats.find('\n', at)) + 1));
  }
  void ExpectTrainingWorks() {
    std::vector<Process> again = Train(30);
    for (Process& trainer : again) {
      EXPECT_EQ(trainer.Wait(kPatience), Exit::WithCode(0))
          << trainer.Outputs() << racks_.Outputs();
    }
  }

  void KillsADaemon() {
    std::vector<Process> trainers = Train(1'000'000);
    WaitUntilTheyTrain(trainers);
    racks_.daemon(1).Signal(SIGKILL);
    ExpectVerdict(
        trainers,
        WordsBut(1, {fmt::format("job training failed: the daemon of rack 1 ({}) is gone, "
                                 "or the link to it",
                                 racks_.endpoint(1)),
                     "(rack_lost)"}));
    ExpectMemoryBack(0);
    ExpectMemoryBack(2);
    racks_.Restart(1);
    ASSERT_TRUE(racks_.serving()) << racks_.Outputs();
    ExpectTrainingWorks();
  }

  RackProcess racks_;
  std::vector<std::string> environment_;  // of trainers and phubctl
};

TEST_F(RackFaults, ADaemonThatIsKilledIsNamedInEveryRackAndMayReturn) { KillsADaemon(); }

class EncryptedRackFaults : private RackAuthority, public RackFaults {
 protected:
  EncryptedRackFaults() : RackFaults(DaemonArguments()) {}
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(RackFaults::SetUp());
    MakeTenant(racks_);
    environment_ = Environment();
  }
};

TEST_F(EncryptedRackFaults, ADaemonThatIsKilledIsNamedInEveryRackAndMayReturn) { KillsADaemon(); }

// Expect: as a link that is cut: nothing comes, and nothing says so.
TEST_F(RackFaults, ADaemonThatIsSilentIsNamedWithinTheLivenessTimeout) {
  std::vector<Process> trainers = Train(1'000'000);
  WaitUntilTheyTrain(trainers);
  racks_.daemon(2).Signal(SIGSTOP);
  ExpectVerdict(trainers,
                WordsBut(2, {fmt::format("job training failed: the daemon of rack 2 ({}) was last "
                                         "heard of",
                                         racks_.endpoint(2)),
                             "(rack_silent)"}));
  ExpectMemoryBack(0);
  ExpectMemoryBack(1);
  racks_.daemon(2).Signal(SIGCONT);
  ExpectMemoryBack(2);
  ExpectTrainingWorks();
}

TEST_F(RackFaults, AWorkerThatDiesIsNamedByItsRankInEveryRack) {
  std::vector<Process> trainers = Train(1'000'000, "auto");
  WaitUntilTheyTrain(trainers);
  trainers[3].Signal(SIGKILL);
  ExpectVerdict(trainers, std::vector<Words>(kRacks, {"job training failed: rank 3 ("}), /*but=*/3);
  for (std::size_t rack = 0; rack < kRacks; ++rack) ExpectMemoryBack(rack);
  ExpectTrainingWorks();
}

TEST_F(RackFaults, ADaemonOfAnotherConfigurationIsRefusedNamedAndCounted) {
  racks_.daemon(1).Signal(SIGTERM);
  ASSERT_TRUE(racks_.daemon(1).Wait(kPatience).has_value());
  racks_.Restart(1, {"--chunk-bytes", "4096"});
  ASSERT_TRUE(racks_.serving()) << racks_.Outputs();
  std::vector<Process> trainers = Train(10);
  const Words silent = {fmt::format("the daemon of rack 1 ({})", racks_.endpoint(1)),
                        "(rack_silent)"};
  const Words waiting = {
      fmt::format("job training was not opened: rack 0 ({})", racks_.endpoint(0)),
      "does not answer"};
  ExpectVerdict(trainers, {silent, waiting, silent});
  EXPECT_THAT(racks_.Outputs(), HasSubstr("rack 1 has configuration"));
  EXPECT_THAT(racks_.Outputs(), HasSubstr("--dump-config"));
  // Every envelope is refused, and tried again, so there are many.
  EXPECT_GE(Counted(0, "phub_peers_refused_configuration_total"), 2u);
  EXPECT_GE(Counted(1, "phub_peers_refused_configuration_total"), 2u);
  EXPECT_EQ(Counted(0, "phub_peers_refused_version_total"), 0u);
}

}  // namespace
}  // namespace phub::process
