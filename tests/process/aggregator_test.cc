// Jobs that span racks, with aggregators: daemons that only sum and forward. Checks the bits
// against a serial oracle that sums in the plan's order, and the job's end when an aggregator dies.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <phub/client.h>
#include <signal.h>

#include <string>
#include <vector>

#include "common/plan/forest_json.h"
#include "common/plan/generators.h"
#include "common/plan/planners/planner.h"
#include "common/plan/topology_json.h"
#include "server/core/exchange/rack_plan.h"
#include "tests/process/rack_expectations.h"
#include "tests/process/rack_process.h"
#include "tests/process/random_rack_job.h"
#include "tests/process/training_process.h"
#include "tests/support/temporary_folder.h"

namespace phub::process {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr DurationNs kAggregatorPatience = 60 * kSecond;

void RunOver(const std::string& name, std::size_t aggregators) {
  const auto topology = plan::Generate(name);
  ASSERT_TRUE(topology.ok()) << topology.status();
  const TemporaryFolder folder;
  const std::string file = folder.Write("racks.json", plan::TopologyToJson(*topology));
  const std::size_t count = topology->members().size();
  const RackProcess racks(
      count + aggregators,
      {"--cores", "1", "--pin", "off", "--topology", file, "--liveness-timeout", kPatientLiveness},
      RackProcess::Kind::kManyRacks, aggregators);
  ASSERT_TRUE(racks.serving()) << racks.Outputs();
  for (const char* planner : {"in-switch", "sharded-star"}) {
    for (std::uint64_t seed = 0; seed < RackJobsPerPlanner(); ++seed) {
      ASSERT_EQ(RunRanks(racks, DrawRackJob(500 + seed, *topology, planner)), "");
    }
  }
  // Expect: the aggregators that the plan uses have added up sums.
  std::uint64_t partials = 0;
  for (std::size_t i = 0; i < aggregators; ++i) {
    partials += CountedAt(racks, count + i, "phub_partials_total");
  }
  EXPECT_GT(partials, 0u);
}

TEST(Aggregators, OneSwitchHasTheBitsOfTheSerialOracle) { RunOver("switch:3,aggregate", 1); }
TEST(Aggregators, SeveralSwitchesHaveTheBitsOfTheSerialOracle) {
  RunOver("racks:2x2@2,aggregate", 3);
}

// Changes one direction of the plan: every rack sends straight to the home over the switch, or
// receives its result straight from the home.
plan::Forest Straightened(const plan::Topology& topology, const plan::Forest& forest,
                          bool reduces) {
  plan::Forest made = forest;
  made.planner = reduces ? "results-only" : "sums-only";
  plan::PathTable paths(made);
  const plan::NodeIndex middle = server::exchange::NodeOf(topology, server::RackIndex{3});
  for (plan::Tree& tree : made.trees) {
    std::vector<plan::Edge>& edges = reduces ? tree.reduce : tree.gather;
    edges.clear();
    for (const plan::NodeIndex member : topology.members()) {
      if (member == tree.home) continue;
      const plan::NodeIndex from = reduces ? member : tree.home;
      const plan::NodeIndex to = reduces ? tree.home : member;
      const auto step = static_cast<std::uint32_t>(edges.size()) + (reduces ? 0 : 2);
      edges.push_back(
          {from, to, step,
           paths.Intern({*topology.FindLink(from, middle), *topology.FindLink(middle, to)})});
    }
  }
  return made;
}

TEST(Aggregators, MaySumAndNotPassOnOrPassOnAndNotSum) {
  const auto topology = plan::Generate("switch:3,aggregate");
  ASSERT_TRUE(topology.ok()) << topology.status();
  const auto forest = plan::MakePlan(*plan::FindPlanner("in-switch"), *topology, {});
  ASSERT_TRUE(forest.ok()) << forest.status();
  const RackProcess racks(4, {"--cores", "1", "--pin", "off"}, RackProcess::Kind::kManyRacks, 1);
  ASSERT_TRUE(racks.serving()) << racks.Outputs();
  for (const bool reduces : {false, true}) {
    const plan::Forest straight = Straightened(*topology, *forest, reduces);
    const std::string text = plan::ForestToJson(*topology, straight);
    const auto partials = CountedAt(racks, 3, "phub_partials_total");
    const auto results = CountedAt(racks, 3, "phub_results_total");
    for (std::uint64_t seed = 0; seed < RackJobsPerPlanner(); ++seed) {
      ASSERT_EQ(RunRanks(racks, DrawRackJob(700 + seed, *topology, straight, text)), "");
    }
    EXPECT_EQ(CountedAt(racks, 3, "phub_partials_total") > partials, !reduces);
    EXPECT_EQ(CountedAt(racks, 3, "phub_results_total") > results, reduces);
  }
}

class OneAggregator : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kRacks = 3;

  void SetUp() override { ASSERT_TRUE(racks_.serving()) << racks_.Outputs(); }
  std::vector<Process> Train(std::uint64_t iterations) {
    std::vector<Process> trainers;
    for (std::uint32_t rank = 0; rank < kRacks; ++rank) {
      trainers.push_back(StartTrainer({.endpoint = racks_.endpoint(rank),
                                       .job = "training",
                                       .rank = rank,
                                       .world_size = kRacks,
                                       .iterations = iterations,
                                       .more = {"--plan", "in-switch"},
                                       .environment = {}}));
    }
    return trainers;
  }
  // Every worker ends in time, with an error that names the aggregator.
  void ExpectNamed(std::vector<Process>& trainers, const std::string& word) {
    ExpectVerdict(trainers,
                  {fmt::format("the daemon of aggregator 3 ({})", racks_.endpoint(kRacks)), word},
                  racks_);
  }

  // Without a topology, the aggregator is assumed to be the switch between the racks.
  RackProcess racks_{kRacks + 1,
                     {"--cores", "1", "--pin", "off"},
                     RackProcess::Kind::kManyRacks,
                     /*aggregator_count=*/1};
};

TEST_F(OneAggregator, ThatIsKilledIsNamedEverywhereAndMayReturn) {
  std::vector<Process> trainers = Train(1'000'000);
  ExpectTraining(trainers, racks_);
  EXPECT_THAT(racks_.Ask(kRacks, {"job", "get", "training", "-o", "json"}).output,
              AllOf(HasSubstr("\"memory_bytes\""), Not(HasSubstr("\"memory_bytes\": \"0\""))));
  racks_.daemon(kRacks).Signal(SIGKILL);
  ExpectNamed(trainers, "or the link to it probably failed");
  for (std::size_t rack = 0; rack < kRacks; ++rack) ExpectMemoryBack(racks_, rack);
  racks_.Restart(kRacks);
  ASSERT_TRUE(racks_.serving()) << racks_.Outputs();
  std::vector<Process> again = Train(30);
  ExpectDone(again, racks_);
  ExpectMemoryBack(racks_, kRacks);
}

TEST_F(OneAggregator, ThatIsSilentIsNamedWithinTheLivenessTimeout) {
  std::vector<Process> trainers = Train(1'000'000);
  ExpectTraining(trainers, racks_);
  racks_.daemon(kRacks).Signal(SIGSTOP);
  ExpectNamed(trainers, "has been silent on");
  racks_.daemon(kRacks).Signal(SIGCONT);
  for (std::size_t daemon = 0; daemon <= kRacks; ++daemon) ExpectMemoryBack(racks_, daemon);
}

TEST_F(OneAggregator, WorkersThatComeToItAreToldWhereToGo) {
  const auto problem_of = [&](const JobOptions& options) {
    auto session = Connect(racks_.endpoint(kRacks));
    if (!session.ok()) return ToString(session.status());
    const auto job = session->Join(options);
    return job.ok() ? std::string("joined") : ToString(job.status());
  };
  EXPECT_THAT(problem_of({.job = "wrong", .rank = 1, .world_size = 3, .plan = "auto"}),
              AllOf(HasSubstr("rank 1 belongs to rack 1"), HasSubstr(racks_.endpoint(1)),
                    HasSubstr("an aggregator")));
  EXPECT_THAT(problem_of({.job = "alone"}),
              AllOf(HasSubstr("no workers"), HasSubstr(racks_.endpoint(0))));
}

TEST_F(OneAggregator, IsShownByJobGet) {
  std::vector<Process> trainers = Train(30);
  for (Process& trainer : trainers) {
    ASSERT_EQ(trainer.Wait(kAggregatorPatience), Exit::WithCode(0))
        << trainer.Outputs() << racks_.Outputs();
  }
  const std::string shown = racks_.Ask(kRacks, {"job", "get", "training"}).output;
  EXPECT_THAT(shown, ContainsRegex("aggregator +3 of 3 racks and 1 aggregator"));
  EXPECT_THAT(shown, HasSubstr("children's sums"));
  EXPECT_THAT(racks_.Ask(0, {"job", "get", "training", "-o", "json"}).output,
              ContainsRegex("\"aggregators\": \\[[[:space:]]*3"));
}

}  // namespace
}  // namespace phub::process
