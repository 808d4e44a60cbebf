// Jobs that span racks, and a rack that dies, stops responding, loses a worker, or has a
// configuration that does not match.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <set>
#include <string>
#include <utility>

#include "tests/process/rack_authority.h"
#include "tests/process/rack_expectations.h"
#include "tests/process/rack_process.h"
#include "tests/process/training_process.h"

namespace phub::process {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr std::uint32_t kRacks = 3;
constexpr DurationNs kPatience = 60 * kSecond;

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
  // The errors of workers in other racks, and those in `rack`, whose own daemon is gone: they know
  // no more than that.
  std::vector<Words> WordsBut(std::size_t rack, const Words& others) const {
    std::vector<Words> words(2 * kRacks, others);
    words[2 * rack] = words[2 * rack + 1] = {racks_.endpoint(rack), "training"};
    return words;
  }
  void ExpectMemoryBackAt(std::size_t rack) {
    ExpectMemoryBack(racks_, rack, "training", environment_);
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
    ExpectDone(again, racks_);
  }

  void KillsADaemon() {
    std::vector<Process> trainers = Train(1'000'000);
    ExpectTraining(trainers, racks_);
    racks_.daemon(1).Signal(SIGKILL);
    ExpectVerdicts(
        trainers,
        WordsBut(1, {fmt::format("job training failed: the daemon of rack 1 ({}) or the link to it "
                                 "probably failed",
                                 racks_.endpoint(1)),
                     "(rack_lost)"}),
        racks_);
    ExpectMemoryBackAt(0);
    ExpectMemoryBackAt(2);
    racks_.Restart(1);
    ASSERT_TRUE(racks_.serving()) << racks_.Outputs();
    ExpectTrainingWorks();
  }

  RackProcess racks_;
  std::vector<std::string> environment_;  // the environment of trainers and phubctl
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

// Expect: as with a cut link, no data arrives and no error is reported.
TEST_F(RackFaults, ADaemonThatIsSilentIsNamedWithinTheLivenessTimeout) {
  std::vector<Process> trainers = Train(1'000'000);
  ExpectTraining(trainers, racks_);
  racks_.daemon(2).Signal(SIGSTOP);
  ExpectVerdicts(
      trainers,
      WordsBut(2, {fmt::format("job training failed: the daemon of rack 2 ({}) has been silent on",
                               racks_.endpoint(2)),
                   "(rack_silent)"}),
      racks_);
  ExpectMemoryBackAt(0);
  ExpectMemoryBackAt(1);
  racks_.daemon(2).Signal(SIGCONT);
  ExpectMemoryBackAt(2);
  ExpectTrainingWorks();
}

TEST_F(RackFaults, AWorkerThatDiesIsNamedByItsRankInEveryRack) {
  std::vector<Process> trainers = Train(1'000'000, "auto");
  ExpectTraining(trainers, racks_);
  trainers[3].Signal(SIGKILL);
  ExpectVerdict(trainers, {"job training failed: rank 3 ("}, racks_, /*but=*/3);
  for (std::size_t rack = 0; rack < kRacks; ++rack) ExpectMemoryBackAt(rack);
  ExpectTrainingWorks();
}

// Two racks lose a worker each at the same time, and each daemon finds its own.
TEST_F(RackFaults, AllRanksOfAllRacksGetTheSameOfTwoFaults) {
  std::vector<Process> trainers = Train(1'000'000, "auto");
  ExpectTraining(trainers, racks_);
  for (const std::size_t lost : {3u, 5u}) trainers[lost].Signal(SIGKILL);
  std::set<std::string> verdicts;
  for (const std::size_t rank : {0u, 1u, 2u, 4u}) {
    ASSERT_TRUE(trainers[rank].Wait(kPatience).has_value()) << "hangs: " << rank;
    const std::string verdict = VerdictOf(trainers[rank]);
    EXPECT_THAT(verdict, ContainsRegex("job training failed: rank (3|5) \\("));
    // Each rank adds what it waited for itself.
    const std::size_t end = verdict.find("(worker_died)");
    ASSERT_NE(end, std::string::npos) << verdict;
    verdicts.insert(verdict.substr(0, end).substr(verdict.find("job training failed")));
  }
  EXPECT_THAT(verdicts, SizeIs(1));
}

TEST_F(RackFaults, ADaemonOfAnotherConfigurationIsRefusedNamedAndCounted) {
  racks_.daemon(1).Signal(SIGTERM);
  ASSERT_TRUE(racks_.daemon(1).Wait(kPatience).has_value());
  racks_.Restart(1, {"--chunk-bytes", "4096"});
  ASSERT_TRUE(racks_.serving()) << racks_.Outputs();
  std::vector<Process> trainers = Train(10);
  // Rack 0 or rack 2 is the first to report, each with its own chunk_bytes in the text.
  const Words silent = {fmt::format("the daemon of rack 1 ({})", racks_.endpoint(1)),
                        "(rack_silent)", "chunk_bytes is ", "131072 at rack ", "4096 at rack 1"};
  const Words waiting = {
      fmt::format("job training was not opened: rack 0 ({})", racks_.endpoint(0)),
      "does not answer", "chunk_bytes is 131072 at rack 0 and 4096 at rack 1"};
  ExpectVerdicts(trainers, {silent, silent, waiting, waiting, silent, silent}, racks_);
  EXPECT_THAT(racks_.Outputs(), HasSubstr("chunk_bytes is 131072 at rack 0 and 4096 at rack 1"));
  EXPECT_THAT(racks_.Outputs(), HasSubstr("--dump-config"));
  // Every envelope is refused and retried, so there are many.
  EXPECT_GE(Counted(0, "phub_peers_refused_configuration_total"), 2u);
  EXPECT_GE(Counted(1, "phub_peers_refused_configuration_total"), 2u);
  EXPECT_EQ(Counted(0, "phub_peers_refused_version_total"), 0u);
}

}  // namespace
}  // namespace phub::process
