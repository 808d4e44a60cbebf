// A job over several daemons: joined at all or at none, and one verdict for all of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "common/base/log.h"
#include "phub/client.h"
#include "tests/support/eventually.h"
#include "tests/unit/client/session/fake_rack.h"

namespace phub::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr milliseconds kRackLiveness{400};

FakeDaemonOptions Options() { return {.liveness_timeout = kRackLiveness.count() * kMillisecond}; }

class RackTest : public ::testing::Test {
 protected:
  void Join(std::size_t through = 0) {
    auto job = rack_.Join({.job = "digits", .rank = 1, .world_size = 2}, through);
    job_.emplace(*std::move(job));
    auto key = job_->AddKey("fc1.weight", f32, 1000, None{});
    ASSERT_TRUE(key.ok()) << ToString(key.status());
    key_.emplace(*key);
  }
  FakeRack rack_{{2, 1, 3}, Options()};
  std::optional<Job> job_;
  std::optional<Key> key_;
};

TEST(DelayedJoin, SaysWhatItWaitsFor) {
  static std::vector<std::string> lines;
  lines.clear();
  SetLogSink([](void*, LogLevel, const std::string& line) { lines.push_back(line); }, nullptr);
  FakeRack rack({1});
  rack[0].DelayJoin("the job's plan is not ready");
  auto job = rack.Join({.job = "digits", .rank = 0, .world_size = 1}, 0, milliseconds(30'000),
                       kMillisecond);
  SetLogSink(nullptr, nullptr);
  ASSERT_TRUE(job.ok()) << ToString(job.status());
  EXPECT_THAT(lines, ::testing::Contains(
                         AllOf(HasSubstr("event=join_delayed job=digits rank=0 daemon=127.0.0.1"),
                               HasSubstr("reason=\"the job's plan is not ready\""))));
}

TEST_F(RackTest, RoundsGoThroughTheCoresOfAllDaemons) {
  Join();
  for (int round = 1; round <= 20; ++round) {
    const std::span<float> gradients = key_->gradients<float>();
    std::iota(gradients.begin(), gradients.end(), static_cast<float>(round));
    const Status status = key_->PushPull().Wait();
    ASSERT_TRUE(status.ok()) << ToString(status);
    ASSERT_TRUE(std::equal(gradients.begin(), gradients.end(), key_->parameters<float>().begin()));
  }
  // 16 chunks over 6 bins, in turn.
  EXPECT_EQ(rack_[0].gradient_count(), 20 * 6);
  EXPECT_EQ(rack_[1].gradient_count(), 20 * 3);
  EXPECT_EQ(rack_[2].gradient_count(), 20 * 7);
}

TEST_F(RackTest, AnyDaemonLeadsToTheRackAndTheAnchorGivesTheIncarnation) {
  Join(/*through=*/2);
  for (std::uint32_t i = 0; i < 3; ++i) {
    const v1::JoinRequest request = rack_[i].join_request();
    EXPECT_EQ(request.daemon(), i);
    EXPECT_EQ(request.incarnation(), i == 0 ? 0 : FakeDaemon::kIncarnation);
    EXPECT_EQ(request.configuration(), "configuration");
    EXPECT_THAT(request.daemon_cores(), ElementsAre(2, 1, 3));
    EXPECT_EQ(rack_[i].committed_count(), 1);
  }
  EXPECT_TRUE(job_->Barrier().ok());
  EXPECT_THAT(rack_[0].barriers(), ElementsAre(0));
  EXPECT_TRUE(rack_[2].barriers().empty());
  EXPECT_TRUE(job_->Leave().ok());
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(rack_[i].left_count(), 1);
}

TEST_F(RackTest, RefusalOfOneDaemonGivesTheOthersBack) {
  rack_[1].RefuseJoin(absl::ResourceExhaustedError("job digits needs 3 MiB more"));
  const auto job = rack_.Join({.job = "digits"});
  EXPECT_EQ(job.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(job.status().message(), AllOf(HasSubstr("127.0.0.1:7701"), HasSubstr("3 MiB more")));
  EXPECT_EQ(rack_[0].left_count(), 1);
  EXPECT_FALSE(rack_[0].said_run_is_over());
  EXPECT_EQ(rack_[0].committed_count(), 0);
  EXPECT_EQ(rack_[2].join_request().job(), "");  // was not called
}

// Otherwise the first daemons keep a run that cannot be completed.
TEST_F(RackTest, ARunThatIsOverAtALaterDaemonIsSaidToBeToThoseBefore) {
  rack_[2].RefuseJoin(absl::AbortedError("job digits failed: rank 0 died"));
  const auto job = rack_.Join({.job = "digits"});
  EXPECT_THAT(job.status().message(), AllOf(HasSubstr("127.0.0.1:7702"), HasSubstr("rank 0")));
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(rack_[i].left_count(), 1);
    EXPECT_TRUE(rack_[i].said_run_is_over());
    EXPECT_THAT(rack_[i].last_verdict(), HasSubstr("rank 0 died"));
  }
}

TEST_F(RackTest, RefusedCommitGivesAllBack) {
  rack_[2].RefuseCommit(absl::NotFoundError("the reservation has lapsed"));
  const auto job = rack_.Join({.job = "digits"});
  EXPECT_THAT(job.status().message(), AllOf(HasSubstr("127.0.0.1:7702"), HasSubstr("lapsed")));
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(rack_[i].left_count(), 1);
}

TEST_F(RackTest, DaemonThatIsNotThereIsNamed) {
  rack_.Hide(1);
  const auto job = rack_.Join({.job = "digits"});
  EXPECT_EQ(job.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(job.status().message(), HasSubstr("127.0.0.1:7701"));
  EXPECT_EQ(rack_[0].committed_count(), 0);
}

TEST_F(RackTest, VerdictOfOneDaemonIsToldToTheOthers) {
  Join();
  rack_[1].HoldReplies(true);
  const Handle handle = key_->PushPull();
  v1::Fault fault;
  fault.set_message("rank 0 on node5 died 1.3 s ago (job digits)");
  rack_[1].GiveVerdict(fault);
  EXPECT_THAT(handle.Wait().message(), HasSubstr("rank 0 on node5"));
  EXPECT_TRUE(Eventually([&] { return rack_[0].left_count() == 1 && rack_[2].left_count() == 1; }));
  EXPECT_EQ(rack_[0].last_verdict(), fault.message());
  EXPECT_EQ(rack_[1].left_count(), 0);
  // The first verdict remains.
  fault.set_message("rank 1 left");
  rack_[0].GiveVerdict(fault);
  EXPECT_THAT(job_->status().message(), HasSubstr("rank 0 on node5"));
}

// The anchor had another verdict before: it is everybody's, also the other daemons'.
TEST_F(RackTest, TheFirstVerdictThatTheAnchorHasIsTaken) {
  Join();
  rack_[0].RecordVerdict("rank 3 on node7 has been silent");
  v1::Fault fault;
  fault.set_message("rank 0 on node5 died 1.3 s ago (job digits)");
  rack_[1].GiveVerdict(fault);
  EXPECT_TRUE(Eventually([&] { return !job_->status().ok(); }));
  EXPECT_EQ(job_->status().message(), "rank 3 on node7 has been silent");
  EXPECT_TRUE(Eventually([&] { return rack_[2].left_count() == 1; }));
  EXPECT_EQ(rack_[2].last_verdict(), "rank 3 on node7 has been silent");
  EXPECT_EQ(rack_[0].left_count(), 0);
}

TEST_F(RackTest, WhatTheAnchorReportsMeanwhileIsTaken) {
  Join();
  rack_[0].StallLeave(milliseconds(100));
  v1::Fault fault;
  fault.set_message("rank 0 died");
  rack_[1].GiveVerdict(fault);
  EXPECT_TRUE(job_->status().ok()) << "it asks the anchor first";
  fault.set_message("rank 3 died");
  fault.set_job("digits");
  rack_[0].GiveVerdict(fault);
  EXPECT_TRUE(Eventually([&] { return !job_->status().ok(); }));
  EXPECT_EQ(job_->status().message(), "rank 3 died");
  EXPECT_TRUE(Eventually([&] { return rack_[2].left_count() == 1; }));
  EXPECT_EQ(rack_[2].last_verdict(), "rank 3 died");
}

TEST_F(RackTest, WithoutTheAnchorAVerdictStandsAlone) {
  Join();
  rack_[0].HideCalls(true);
  v1::Fault fault;
  fault.set_message("rank 0 on node5 died 1.3 s ago (job digits)");
  rack_[1].GiveVerdict(fault);
  EXPECT_TRUE(Eventually([&] { return !job_->status().ok(); }));
  EXPECT_EQ(job_->status().message(), fault.message());
  EXPECT_TRUE(Eventually([&] { return rack_[2].left_count() == 1; }));
  EXPECT_EQ(rack_[2].last_verdict(), fault.message());
  rack_[0].HideCalls(false);
}

TEST_F(RackTest, LeaveWaitsForTheCommonVerdict) {
  Join();
  rack_[0].RecordVerdict("rank 3 on node7 has been silent");
  rack_[0].StallLeave(milliseconds(100));
  v1::Fault fault;
  fault.set_message("rank 0 died");
  rack_[1].GiveVerdict(fault);
  EXPECT_EQ(job_->Leave().message(), "rank 3 on node7 has been silent");
}

TEST_F(RackTest, DeadDaemonIsNamedAndTheOthersAreToldOfIt) {
  Join();
  rack_[1].HoldReplies(true);
  const Handle handle = key_->PushPull();
  rack_[1].Die();
  const Status status = handle.Wait();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("daemon 127.0.0.1:7701 died or is unreachable"));
  EXPECT_TRUE(Eventually([&] { return rack_[0].left_count() == 1 && rack_[2].left_count() == 1; }));
  EXPECT_THAT(rack_[2].last_verdict(), HasSubstr("127.0.0.1:7701"));
}

TEST_F(RackTest, SilentDaemonIsNamedInTime) {
  Join();
  rack_[2].HoldReplies(true);
  rack_[2].AnswerHeartbeats(false);
  const auto start = steady_clock::now();
  const Status status = key_->PushPull().Wait();
  EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(30));
  EXPECT_THAT(
      status.message(),
      AllOf(ContainsRegex("daemon 127.0.0.1:7702 has been silent on all lanes for [0-9]+[.]"),
            HasSubstr("(job digits, rank 1)")));
}

TEST_F(RackTest, DaemonThatGoesWhileItIsDrainedIsSaidToBe) {
  Join();
  v1::SessionEvent event;
  event.mutable_draining()->set_deadline_ns(kSecond);
  rack_[1].Say(event);
  rack_[1].Die();
  EXPECT_TRUE(Eventually([&] { return !job_->status().ok(); }));
  EXPECT_THAT(job_->status().message(),
              AllOf(HasSubstr("7701"), HasSubstr("the daemon was draining")));
}

TEST_F(RackTest, DaemonsThatPlaceDifferentlyEndTheJob) {
  auto job = rack_.Join({.job = "digits"});
  ASSERT_TRUE(job.ok()) << ToString(job.status());
  rack_[2].PlaceDifferently();
  const auto key = job->AddKey("w", f32, 1000, None{});
  EXPECT_EQ(key.status().code(), StatusCode::kInternal);
  EXPECT_THAT(key.status().message(),
              AllOf(HasSubstr("7700"), HasSubstr("7702"), HasSubstr("differently")));
  EXPECT_FALSE(job->status().ok());
}

TEST_F(RackTest, KeysThatOneDaemonRefusesEndTheJobAndTheRefusalNamesIt) {
  auto job = rack_.Join({.job = "digits"});
  ASSERT_TRUE(job.ok()) << ToString(job.status());
  rack_[1].RefuseKeys(absl::ResourceExhaustedError("1 MiB too much"));
  const auto key = job->AddKey("w", f32, 1000, None{});
  EXPECT_THAT(key.status().message(), AllOf(HasSubstr("7701"), HasSubstr("1 MiB too much")));
  EXPECT_EQ(job->status().message(), key.status().message());
}

TEST(Transport, SharedMemoryThatIsNotThereIsAnErrorWhereItWasAskedFor) {
  FakeRack rack({1});
  const auto job = rack.Join({.job = "digits", .transport = TransportChoice::kSharedMemory});
  EXPECT_EQ(job.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(job.status().message(), HasSubstr("offers no shared memory"));
  EXPECT_EQ(rack[0].left_count(), 1);
}

}  // namespace
}  // namespace phub::client
