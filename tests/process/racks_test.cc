// Jobs that span racks: a phubd per rack, workers in all racks as threads, every planner. After
// every round the bits must match a serial oracle that sums in the plan's order. PHUB_TEST_LONG=1
// draws more jobs.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <phub/client.h>
#include <signal.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "common/plan/generators.h"
#include "common/plan/planners/planner.h"
#include "tests/process/rack_authority.h"
#include "tests/process/rack_process.h"
#include "tests/process/random_rack_job.h"

namespace phub::process {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::unique_ptr<RackProcess> StartRacks(std::size_t count,
                                        const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {"--cores", "1", "--pin", "off"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return std::make_unique<RackProcess>(count, arguments, RackProcess::Kind::kManyRacks);
}

class Racks : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(Racks, EveryPlanHasTheBitsOfTheSerialOracle) {
  const std::uint32_t count = GetParam();
  const auto racks = StartRacks(count, {"--liveness-timeout", kPatientLiveness});
  ASSERT_TRUE(racks->serving()) << racks->Outputs();
  const auto topology = plan::Generate(fmt::format("switch:{}", count));
  ASSERT_TRUE(topology.ok());
  const std::uint64_t seeds = RackJobsPerPlanner();
  std::size_t planners = 0;
  for (const plan::Planner& planner : plan::Planners()) {
    if (!planner.applies(*topology).ok()) continue;
    ++planners;
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      const RandomJob job = DrawRackJob(100 * count + seed, count, std::string(planner.name));
      ASSERT_EQ(RunRanks(*racks, job), "");
    }
  }
  EXPECT_GE(planners, 5u);
}

INSTANTIATE_TEST_SUITE_P(Counts, Racks, ::testing::Values(2, 3, 4));

TEST(RackJobs, TheStoredPlanIsShownAtEveryRack) {
  const auto racks = StartRacks(2);
  ASSERT_TRUE(racks->serving()) << racks->Outputs();
  RandomJob job = DrawRackJob(7, 2, "ring");
  ASSERT_EQ(RunRanks(*racks, job), "");
  for (std::size_t rack = 0; rack < 2; ++rack) {
    const Finished shown = racks->Ask(rack, {"job", "get", job.name, "-o", "json"});
    EXPECT_THAT(shown.output, HasSubstr("\"planner\": \"ring\""));
    EXPECT_THAT(shown.output, HasSubstr("phub.plan.v1"));
    EXPECT_THAT(racks->Ask(rack, {"job", "get", job.name}).output,
                HasSubstr("ring (requested: ring)"));
  }
}

TEST(RackJobs, LanesBetweenRacksAreEncryptedIfDataTlsIsOn) {
  const RackAuthority authority;
  std::vector<std::string> arguments = authority.DaemonArguments();
  arguments.insert(arguments.end(), {"--peer-transport", "tcp"});
  const auto racks = StartRacks(3, arguments);
  ASSERT_TRUE(racks->serving()) << racks->Outputs();
  authority.MakeTenant(*racks);
  for (const char* planner : {"ring", "sharded-star"}) {
    for (std::uint64_t seed = 30; seed < 34; ++seed) {
      ASSERT_EQ(RunRanks(*racks, DrawRackJob(seed, 3, planner)), "");
    }
  }
  EXPECT_THAT(racks->Outputs(), HasSubstr("event=peer_lane_attached"));
  EXPECT_THAT(racks->Outputs(), HasSubstr("lane=\"tcp+tls "));
  EXPECT_THAT(racks->Outputs(), Not(HasSubstr("lane=\"tcp ")));
}

TEST(RackJobs, WithoutRdmaLanesAreOverTcpAndTheLogSaysWhy) {
  const auto racks = StartRacks(2, {"--verbs", "off"});
  ASSERT_TRUE(racks->serving()) << racks->Outputs();
  const RandomJob job = DrawRackJob(8, 2, "ring");
  ASSERT_EQ(RunRanks(*racks, job), "");
  EXPECT_THAT(racks->Outputs(),
              HasSubstr("rack=0 count=1 first=tcp reason=\"verbs = off on this daemon\""));
  EXPECT_THAT(racks->Ask(0, {"job", "get", job.name, "-o", "json"}).output,
              HasSubstr("\"tcp 127.0.0.1"));
  EXPECT_THAT(racks->Ask(1, {"job", "get", job.name}).output,
              HasSubstr(racks->endpoint(0) + "  tcp "));
}

TEST(RackJobs, ADaemonWhoseLanesHaveToBeOverRdmaDoesNotStartWithoutIt) {
  const Finished refused = RunToEnd(
      kPhubd, {"--listen", "127.0.0.1:0", "--racks", "127.0.0.1:1,127.0.0.1:2", "--rack-self",
               "127.0.0.1:1", "--verbs", "off", "--peer-transport", "verbs"});
  EXPECT_NE(refused.exit, Exit::WithCode(0));
  EXPECT_THAT(refused.error, HasSubstr("peer_transport = verbs needs RDMA, but verbs = off"));
}

// One daemon is restarted with certificates of another authority. For the other daemon only the
// files change: it presents the new certificate, and no longer trusts the previous authority.
TEST(RackJobs, CertificatesAmongDaemonsAreReloadedWithoutARestart) {
  const RackAuthority authority;
  const auto racks = StartRacks(2, authority.DaemonArguments());
  ASSERT_TRUE(racks->serving()) << racks->Outputs();
  authority.MakeTenant(*racks);
  ASSERT_EQ(RunRanks(*racks, DrawRackJob(40, 2, "ring")), "");
  authority.Renew();
  // Daemons check the files every two seconds. Until then they refuse peers with new certificates.
  std::this_thread::sleep_for(std::chrono::seconds(5));
  racks->daemon(1).Signal(SIGKILL);
  ASSERT_TRUE(racks->daemon(1).Wait(60 * kSecond).has_value());
  racks->Restart(1);
  ASSERT_EQ(RunRanks(*racks, DrawRackJob(41, 2, "ring")), "");
}

std::string JoinProblem(const RackProcess& racks, std::size_t rack, const JobOptions& options) {
  auto session = Connect(racks.endpoint(rack));
  if (!session.ok()) return ToString(session.status());
  const auto job = session->Join(options);
  return job.ok() ? "joined" : ToString(job.status());
}

TEST(RackJobs, WhatDoesNotFitIsRefusedWithTheReason) {
  const auto racks = StartRacks(2);
  ASSERT_TRUE(racks->serving()) << racks->Outputs();
  EXPECT_THAT(JoinProblem(*racks, 0, {.job = "odd", .world_size = 3, .plan = "auto"}),
              HasSubstr("not a multiple of 2"));
  EXPECT_THAT(JoinProblem(*racks, 0, {.job = "there", .rank = 1, .world_size = 2, .plan = "auto"}),
              HasSubstr(racks->endpoint(1)));
  for (const std::size_t rack : {0u, 1u}) {  // rack 1 receives the error from rack 0
    const auto own = static_cast<std::uint32_t>(rack);
    EXPECT_THAT(
        JoinProblem(*racks, rack, {.job = "best", .rank = own, .world_size = 2, .plan = "best"}),
        HasSubstr("there is no planner best; choose one of auto"));
    EXPECT_THAT(JoinProblem(*racks, rack,
                            {.job = "own", .rank = own, .world_size = 2, .plan = "{\"a\": 1}"}),
                HasSubstr("the plan for its racks is refused"));
  }
  EXPECT_THAT(
      JoinProblem(*racks, 0,
                  {.job = "whole", .world_size = 2, .apply = Apply::kIteration, .plan = "auto"}),
      HasSubstr("not supported in jobs that span racks"));
  const DaemonProcess alone({"--cores", "1"});
  auto session = Connect(alone.endpoint());
  ASSERT_TRUE(session.ok());
  EXPECT_THAT(ToString(session->Join({.job = "alone", .world_size = 2, .plan = "auto"}).status()),
              HasSubstr("this daemon has no `racks` configured; configure them"));
}

}  // namespace
}  // namespace phub::process
