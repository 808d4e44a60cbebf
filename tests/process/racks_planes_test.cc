// Jobs across racks of several daemons each. Checks the bits against the serial oracle, and the
// jobs' end when a daemon of one plane dies or is paired with the wrong counterpart.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <phub/client.h>
#include <signal.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "common/plan/generators.h"
#include "common/plan/topology_json.h"
#include "tests/process/rack_authority.h"
#include "tests/process/rack_expectations.h"
#include "tests/process/rack_process.h"
#include "tests/process/random_rack_job.h"
#include "tests/process/training_process.h"
#include "tests/support/temporary_folder.h"

namespace phub::process {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr DurationNs kPatience = 60 * kSecond;

const std::vector<std::string> kSmall = {"--cores", "1", "--pin", "off"};

// Expect: the bits of the serial oracle, whichever daemon of its rack a worker connects to.
void RunOver(const std::string& name, std::uint32_t daemons, std::size_t aggregators,
             const std::vector<std::string>& planners) {
  const auto topology = plan::Generate(name);
  ASSERT_TRUE(topology.ok()) << topology.status();
  const TemporaryFolder folder;
  std::vector<std::string> arguments = kSmall;
  arguments.insert(arguments.end(),
                   {"--topology", folder.Write("racks.json", plan::TopologyToJson(*topology)),
                    "--liveness-timeout", kPatientLiveness});
  const std::size_t count = (topology->members().size() + aggregators) * daemons;
  const RackProcess racks(count, arguments, RackProcess::Kind::kManyRacks, aggregators, daemons);
  ASSERT_TRUE(racks.serving()) << racks.Outputs();
  const std::uint64_t seeds = RackJobsPerPlanner();
  for (const std::string& planner : planners) {
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      ASSERT_EQ(RunRanks(racks, DrawRackJob(900 + seed, *topology, planner, daemons)), "");
    }
  }
}

TEST(RackPlanes, TwoRacksOfTwoDaemonsHaveTheBitsOfTheSerialOracle) {
  RunOver("switch:2", 2, 0, {"ring", "sharded-star"});
}
TEST(RackPlanes, ThreeRacksOfThreeDaemonsHaveTheBitsOfTheSerialOracle) {
  RunOver("switch:3", 3, 0, {"ring", "sharded-star"});
}
TEST(RackPlanes, AggregatorsOfTwoDaemonsHaveTheBitsOfTheSerialOracle) {
  RunOver("switch:2,aggregate", 2, 1, {"in-switch"});
}

TEST(RackPlanes, DaemonsKnowTheirCounterpartsByCertificatesAndLanesAreEncrypted) {
  const RackAuthority authority;
  std::vector<std::string> arguments = authority.DaemonArguments();
  arguments.insert(arguments.end(), kSmall.begin(), kSmall.end());
  const RackProcess racks(4, arguments, RackProcess::Kind::kManyRacks, 0, 2);
  ASSERT_TRUE(racks.serving()) << racks.Outputs();
  authority.MakeTenant(racks);
  const auto topology = plan::Generate("switch:2");
  ASSERT_TRUE(topology.ok()) << topology.status();
  for (std::uint64_t seed = 950; seed < 954; ++seed) {
    ASSERT_EQ(RunRanks(racks, DrawRackJob(seed, *topology, "ring", 2)), "");
  }
  EXPECT_THAT(racks.Outputs(), HasSubstr("lane=\"tcp+tls "));
  EXPECT_THAT(racks.Outputs(), Not(HasSubstr("lane=\"tcp ")));
}

// Two racks of two daemons. Daemons 0 and 1 are in rack 0.
class RackPlaneFaults : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kRanks = 4;

  RackPlaneFaults() : racks_(4, kSmall, RackProcess::Kind::kManyRacks, 0, 2) {}
  void SetUp() override { ASSERT_TRUE(racks_.serving()) << racks_.Outputs(); }

  std::vector<Process> Train(std::uint64_t iterations, const std::string& job = "training") {
    std::vector<Process> trainers;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      trainers.push_back(StartTrainer({.endpoint = racks_.endpoint(rank),
                                       .job = job,
                                       .rank = rank,
                                       .world_size = kRanks,
                                       .iterations = iterations,
                                       .more = {"--plan", "auto"}}));
    }
    return trainers;
  }
  void ExpectTrainingWorks() {
    std::vector<Process> again = Train(30);
    ExpectDone(again, racks_);
  }

  RackProcess racks_;
};

TEST_F(RackPlaneFaults, ADaemonThatIsKilledIsNamedInEveryRackEveryPlaneEndsAndItMayReturn) {
  // The second daemon of rack 1; the first of all daemons.
  for (const std::size_t dead : {3u, 0u}) {
    std::vector<Process> trainers = Train(1'000'000);
    ExpectTraining(trainers, racks_);
    racks_.daemon(dead).Signal(SIGKILL);
    ExpectVerdict(trainers, {racks_.endpoint(dead), "training"}, racks_);
    for (std::size_t i = 0; i < racks_.size(); ++i) {
      if (i != dead) ExpectMemoryBack(racks_, i);
    }
    racks_.Restart(dead);
    ASSERT_TRUE(racks_.serving()) << racks_.Outputs();
    ExpectTrainingWorks();
  }
}

// Expect: as with a cut link, no data arrives and no error is reported.
TEST_F(RackPlaneFaults, ADaemonThatIsSilentIsNamedInEveryRack) {
  std::vector<Process> trainers = Train(1'000'000);
  ExpectTraining(trainers, racks_);
  racks_.daemon(1).Signal(SIGSTOP);
  ExpectVerdict(trainers, {racks_.endpoint(1), "training"}, racks_);
  for (const std::size_t i : {0u, 2u, 3u}) ExpectMemoryBack(racks_, i);
  racks_.daemon(1).Signal(SIGCONT);
  ExpectMemoryBack(racks_, 1);
  ExpectTrainingWorks();
}

TEST_F(RackPlaneFaults, AWorkerThatDiesIsNamedByItsRankInEveryRack) {
  std::vector<Process> trainers = Train(1'000'000);
  ExpectTraining(trainers, racks_);
  trainers[3].Signal(SIGKILL);
  ExpectVerdict(trainers, {"job training failed: rank 3 ("}, racks_, /*but=*/3);
  for (std::size_t i = 0; i < racks_.size(); ++i) ExpectMemoryBack(racks_, i);
  ExpectTrainingWorks();
}

// Rack 0's second daemon is configured with rack 1's first daemon as its counterpart, which never
// exchanges with it. The job is refused with that reason, and runs once the list is correct.
TEST_F(RackPlaneFaults, AWrongPairingIsRefusedAndBothAreNamed) {
  racks_.daemon(1).Signal(SIGTERM);
  ASSERT_TRUE(racks_.daemon(1).Wait(kPatience).has_value());
  racks_.Restart(1, {"--racks", fmt::format("{},{}", racks_.endpoint(1), racks_.endpoint(2))});
  ASSERT_TRUE(racks_.serving()) << racks_.Outputs();
  std::vector<Process> trainers = Train(10);
  const SystemClock clock;
  const TimeNs deadline = clock.Now() + kPatience;
  for (Process& trainer : trainers) {
    const auto exit = trainer.Wait(std::max<DurationNs>(0, deadline - clock.Now()));
    ASSERT_TRUE(exit.has_value()) << "hangs: " << trainer.Outputs() << racks_.Outputs();
    EXPECT_EQ(exit, Exit::WithCode(1)) << trainer.Outputs();
    EXPECT_THAT(VerdictOf(trainer),
                AllOf(HasSubstr("rack "), HasSubstr("refuses messages from this daemon")));
  }
  EXPECT_THAT(racks_.Outputs(),
              AllOf(HasSubstr(fmt::format("rack 0's daemon 1 of 2 ({})", racks_.endpoint(1))),
                    HasSubstr(fmt::format("rack 1's daemon 0 of 2 ({})", racks_.endpoint(2)))));
  racks_.daemon(1).Signal(SIGTERM);
  ASSERT_TRUE(racks_.daemon(1).Wait(kPatience).has_value());
  racks_.Restart(1);
  ASSERT_TRUE(racks_.serving()) << racks_.Outputs();
  ExpectTrainingWorks();
}

// Each daemon reports the values of its own plane, without the endpoints of the other plane.
TEST_F(RackPlaneFaults, JobGetShowsThePlaneOfTheDaemonThatIsAsked) {
  ExpectTrainingWorks();
  for (const std::size_t asked : {2u, 3u}) {
    const Finished shown = racks_.Ask(asked, {"job", "get", "training"});
    EXPECT_THAT(shown.output, HasSubstr("1 of 2"));
    EXPECT_THAT(shown.output, HasSubstr(racks_.endpoint(asked - 2)));
    EXPECT_THAT(shown.output, Not(HasSubstr(racks_.endpoint(3 - asked))));
  }
}

}  // namespace
}  // namespace phub::process
