// Racks whose daemons measure their topology themselves: jobs that arrive before the measurement is
// done, their bits, what operators see and change, and a rack that cannot be measured.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/plan/topology_json.h"
#include "tests/process/rack_process.h"
#include "tests/process/random_rack_job.h"
#include "tests/process/training_process.h"

namespace phub::process {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

class ProbedRacks : public ::testing::Test {
 protected:
  void Start(std::size_t count) {
    racks_ = std::make_unique<RackProcess>(
        count, std::vector<std::string>{"--cores", "1", "--pin", "off", "--topology", "probe"},
        RackProcess::Kind::kManyRacks);
    ASSERT_TRUE(racks_->serving()) << racks_->Outputs();
  }
  Json Show(std::size_t rack) const {
    const Finished shown = racks_->Ask(rack, {"plan", "probe", "--show", "-o", "json"});
    EXPECT_EQ(shown.exit, Exit::WithCode(0)) << shown.error;
    return Json::parse(shown.output, nullptr, /*allow_exceptions=*/false);
  }
  // Waits until rack 0 has measured the topology. Any daemon can report it.
  Json AwaitTopology(std::size_t rack) const {
    Json shown = Show(rack);
    for (int i = 0; i < 120 && shown["measured_unix_ns"] == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      shown = Show(rack);
    }
    EXPECT_NE(shown["measured_unix_ns"], 0) << racks_->Outputs();
    return shown;
  }
  Process Train(std::uint32_t rank, std::uint32_t count, const std::string& job) const {
    return StartTrainer({.endpoint = racks_->endpoint(rank),
                         .job = job,
                         .rank = rank,
                         .world_size = count,
                         .iterations = 20,
                         .more = {"--plan", "auto"}});
  }
  void TrainEverywhere(std::uint32_t count, const std::string& job) const {
    std::vector<Process> trainers;
    for (std::uint32_t rank = 0; rank < count; ++rank) trainers.push_back(Train(rank, count, job));
    for (Process& trainer : trainers) {
      EXPECT_EQ(trainer.Wait(60 * kSecond), Exit::WithCode(0))
          << trainer.Outputs() << racks_->Outputs();
    }
  }
  Json Exchange(std::size_t rack, const std::string& job) const {
    return Json::parse(racks_->Ask(rack, {"job", "get", job, "-o", "json"}).output)["exchange"];
  }

  std::unique_ptr<RackProcess> racks_;
};

TEST_F(ProbedRacks, MeasureByThemselvesAndPlanJobsForIt) {
  ASSERT_NO_FATAL_FAILURE(Start(3));
  TrainEverywhere(3, "early");  // the job waits for the measurement
  const Json shown = AwaitTopology(2);
  EXPECT_EQ(shown["probed"], true);
  EXPECT_EQ(shown["state"], "measured");
  const auto topology = plan::ParseTopologyJson(shown["topology"].dump());
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_EQ(topology->members().size(), 3u);
  for (const char* planner : {"ring", "sharded-star", "multitree"}) {
    const RandomJob job = DrawRackJob(11, *topology, planner);
    ASSERT_EQ(RunRanks(*racks_, job), "");
    for (std::size_t rack = 0; rack < 3; ++rack) {
      const Json exchange = Exchange(rack, job.name);
      EXPECT_EQ(exchange["topology"], "measured");
      EXPECT_EQ(exchange["measured_unix_ns"],
                std::to_string(shown["measured_unix_ns"].get<long>()));
      EXPECT_EQ(Json::parse(exchange["measured_topology"].get<std::string>()), shown["topology"]);
    }
    EXPECT_THAT(racks_->Ask(1, {"job", "get", job.name}).output,
                AllOf(HasSubstr("probed"), HasSubstr(" ago: {")));
  }
  EXPECT_THAT(racks_->Ask(0, {"plan", "probe", "--show"}).output,
              AllOf(HasSubstr("topology: probe, measured"), HasSubstr("Mbit/s")));
  EXPECT_THAT(racks_->daemon(0).StandardError(), HasSubstr("event=survey racks=3"));
  EXPECT_THAT(racks_->daemon(1).StandardError(), Not(HasSubstr("event=survey")));
}

TEST_F(ProbedRacks, AnOperatorHasItMeasuredAnewAtAnyRack) {
  ASSERT_NO_FATAL_FAILURE(Start(3));
  const Json before = AwaitTopology(0);
  const Finished applied =
      racks_->Ask(2, {"plan", "probe", "--apply", "--duration", "20ms", "--repeat", "1"});
  ASSERT_EQ(applied.exit, Exit::WithCode(0)) << applied.error;
  EXPECT_THAT(applied.error, HasSubstr("new jobs are planned for this"));
  const Json after = Show(1);
  EXPECT_GT(after["measured_unix_ns"], before["measured_unix_ns"]);
  TrainEverywhere(3, "after");
  EXPECT_EQ(Exchange(1, "after")["measured_unix_ns"],
            std::to_string(after["measured_unix_ns"].get<long>()));
  EXPECT_THAT(racks_->Ask(0, {"stats", "--all"}).output,
              AllOf(HasSubstr("phub_surveys_total"), HasSubstr("phub_topologies_applied_total")));
  // A plan for the previous topology would be refused.
  const Finished both = racks_->Ask(0, {"plan", "probe", "--apply", "--plan-out", "x"});
  EXPECT_EQ(both.exit, Exit::WithCode(2)) << both.error;
}

TEST_F(ProbedRacks, ARackThatCannotBeMeasuredIsNamedToWhoWaits) {
  ASSERT_NO_FATAL_FAILURE(Start(3));
  ASSERT_TRUE(racks_->daemon(0).WaitForOutput("event=survey_begun", 10 * kSecond));
  racks_->daemon(2).Signal(SIGSTOP);
  Process trainer = Train(1, 3, "refused");
  const auto exit = trainer.Wait(30 * kSecond);
  racks_->daemon(2).Signal(SIGCONT);
  ASSERT_TRUE(exit.has_value()) << racks_->Outputs();
  EXPECT_NE(*exit, Exit::WithCode(0));
  EXPECT_THAT(trainer.Outputs(), AllOf(HasSubstr("could not be measured"),
                                       HasSubstr(fmt::format("rack 2 ({})", racks_->endpoint(2)))))
      << racks_->Outputs();
  // The next job starts another measurement.
  TrainEverywhere(3, "again");
  EXPECT_NE(Show(0)["measured_unix_ns"], 0);
}

TEST(ProbedRacksSettings, AreCheckedWithTheirReason) {
  const std::vector<std::string> common = {
      "--listen",   "127.0.0.1:7700", "--racks",       "127.0.0.1:7700,127.0.0.1:7701",
      "--topology", "probe",          "--check-config"};
  EXPECT_EQ(RunToEnd(kPhubd, common).exit, Exit::WithCode(0));
  std::vector<std::string> aggregated = common;
  aggregated.insert(aggregated.end(), {"--aggregators", "127.0.0.1:7702"});
  const Finished refused = RunToEnd(kPhubd, aggregated);
  EXPECT_NE(refused.exit, Exit::WithCode(0));
  EXPECT_THAT(refused.error, AllOf(HasSubstr("topology = \"probe\""), HasSubstr("aggregators")));
}

TEST(ConfiguredRacks, ApplyNothingThatWasMeasured) {
  const RackProcess racks(2, {"--cores", "1", "--pin", "off"}, RackProcess::Kind::kManyRacks);
  ASSERT_TRUE(racks.serving()) << racks.Outputs();
  const Finished refused = racks.Ask(1, {"plan", "probe", "--apply"});
  EXPECT_NE(refused.exit, Exit::WithCode(0));
  EXPECT_THAT(refused.error, HasSubstr("topology = \"probe\" at every rack"));
  EXPECT_THAT(racks.Ask(1, {"plan", "probe", "--show"}).output, HasSubstr("topology: configured"));
}

}  // namespace
}  // namespace phub::process
