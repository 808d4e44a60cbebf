// Nothing hangs: if a rank or a daemon dies, every handle and call completes in time with an error
// that names it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <optional>
#include <thread>

#include "phub/client.h"
#include "tests/unit/client/session/fake_rack.h"

namespace phub::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr milliseconds kLiveness{400};
// Generous, since a machine may be suspended for a while.
constexpr std::chrono::seconds kInTime{20};

class JobFailureTest : public ::testing::Test {
 protected:
  void SetUp() override {
    rack_ = std::make_unique<FakeRack>(
        std::vector<std::uint32_t>{2},
        FakeDaemonOptions{.liveness_timeout = kLiveness.count() * kMillisecond});
    daemon_ = &(*rack_)[0];
    auto job = rack_->Join({.job = "digits", .rank = 1, .world_size = 2});
    ASSERT_TRUE(job.ok()) << ToString(job.status());
    job_.emplace(*std::move(job));
    auto key = job_->AddKey("fc1.weight", f32, 300, None{});
    ASSERT_TRUE(key.ok()) << ToString(key.status());
    key_.emplace(*key);
    daemon_->HoldReplies(true);
    handle_ = key_->PushPull();
    while (daemon_->gradient_count() == 0) std::this_thread::yield();
  }
  static v1::Fault Verdict() {
    v1::Fault fault;
    fault.set_code("worker_died");
    fault.set_message("rank 2 on node5 died 1.3 s ago (job digits)");
    return fault;
  }
  std::unique_ptr<FakeRack> rack_;
  FakeDaemon* daemon_ = nullptr;
  std::optional<Job> job_;
  std::optional<Key> key_;
  Handle handle_;
};

TEST_F(JobFailureTest, AnOlderDaemonRefusesKeysThatMove) {
  daemon_->HoldReplies(false);
  const auto key = job_->AddKey("moved", f32, 300, None{}, {.movement = Movement::kGather});
  ASSERT_FALSE(key.ok());
  EXPECT_EQ(key.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(key.status().message(),
              AllOf(HasSubstr("key moved needs movement gather, which daemon "),
                    HasSubstr("does not support: upgrade the daemon")));
  EXPECT_TRUE(job_->status().ok());
}

TEST_F(JobFailureTest, AnOlderDaemonRefusesCollectiveKeys) {
  const auto key = job_->AddKey("loss", f32, 300, None{}, {.collective = true});
  ASSERT_FALSE(key.ok());
  EXPECT_EQ(key.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(key.status().message(), HasSubstr("key loss needs collective keys, which daemon "));
  EXPECT_TRUE(job_->status().ok());
}

TEST_F(JobFailureTest, AnOlderDaemonRefusesCompression) {
  const auto key = job_->AddKey("small", f32, 300, Sgd{0.1}, {.compression = Compression::Int8()});
  ASSERT_FALSE(key.ok());
  EXPECT_EQ(key.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(key.status().message(), HasSubstr("key small needs compression int8, which daemon "));
  EXPECT_TRUE(job_->status().ok());
}

TEST(JobOfAnOlderDaemon, RefusesPooledKeys) {
  FakeRack rack(std::vector<std::uint32_t>{1}, FakeDaemonOptions{.collective = true});
  auto job = rack.Join({.job = "digits", .rank = 0, .world_size = 1});
  ASSERT_TRUE(job.ok()) << ToString(job.status());
  EXPECT_TRUE(job->AddKey("loss", f32, 300, None{}, {.collective = true}).ok());
  const auto key = job->AddKey("pool", u8, 4096, None{}, {.collective = true, .pooled = true});
  ASSERT_FALSE(key.ok());
  EXPECT_EQ(key.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(key.status().message(), HasSubstr("key pool needs pooled keys, which daemon "));
}

TEST(JobOfAnOlderDaemon, RefusesMovementsThatTheDaemonDoesNotHave) {
  FakeRack rack(std::vector<std::uint32_t>{1}, FakeDaemonOptions{.movements = true});
  auto job = rack.Join({.job = "digits", .rank = 0, .world_size = 1});
  ASSERT_TRUE(job.ok()) << ToString(job.status());
  EXPECT_TRUE(job->AddKey("gathered", f32, 300, None{}, {.movement = Movement::kGather}).ok());
  for (const auto& [movement, name] :
       {std::pair(Movement::kAllToAll, "all_to_all"), std::pair(Movement::kScatter, "scatter"),
        std::pair(Movement::kGatherToOne, "gather_to_one")}) {
    const auto key = job->AddKey("moved", f32, 300, None{}, {.movement = movement});
    ASSERT_FALSE(key.ok());
    EXPECT_EQ(key.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(key.status().message(),
                HasSubstr(std::string("key moved needs movement ") + name + ", which daemon "));
  }
}

TEST_F(JobFailureTest, VerdictCompletesHandlesAndNamesTheKey) {
  daemon_->GiveVerdict(Verdict());
  const Status status = handle_.Wait();
  EXPECT_EQ(status.code(), StatusCode::kAborted);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("rank 2 on node5 died 1.3 s ago"),
                                      HasSubstr("fc1.weight"), HasSubstr("iteration 1")));
  EXPECT_TRUE(handle_.Test());
  EXPECT_EQ(key_->PushPull().Wait().code(), StatusCode::kAborted);
  EXPECT_EQ(job_->status().code(), StatusCode::kAborted);
  EXPECT_EQ(job_->Leave().code(), StatusCode::kAborted);
  EXPECT_EQ(daemon_->left_count(), 0);
}

TEST_F(JobFailureTest, VerdictThatNamesTheKeyIsPassedOnWordByWord) {
  v1::Fault fault = Verdict();
  fault.set_key("fc1.weight");
  fault.set_message("ranks 0 and 1 disagree on key fc1.weight");
  daemon_->GiveVerdict(fault);
  EXPECT_EQ(handle_.Wait().message(), fault.message());
}

TEST_F(JobFailureTest, VerdictNamesTheNewestSavedStateThatTheDaemonToldOf) {
  v1::SessionEvent event;
  event.mutable_saved()->set_iteration(40);
  event.mutable_saved()->set_directory("/data/new\x1b[2J" + std::string(5000, 'x'));
  event.mutable_saved()->set_host("node7");
  event.mutable_saved()->set_age_ns(kSecond);
  daemon_->Say(event);
  // A late report, as from another daemon of the rack, must not replace a newer one.
  event.mutable_saved()->set_iteration(30);
  event.mutable_saved()->set_directory("/data/old");
  event.mutable_saved()->set_age_ns(3600 * kSecond);
  daemon_->Say(event);
  daemon_->GiveVerdict(Verdict());
  const std::string message(handle_.Wait().message());
  EXPECT_THAT(message, HasSubstr("rank 2 on node5 died 1.3 s ago"));
  EXPECT_THAT(message, HasSubstr("the latest checkpoint that rank 1 knows of is iteration 40 in "
                                 "/data/new?[2Jxxx"));
  EXPECT_THAT(message, HasSubstr("x... on host node7"));
  EXPECT_LT(message.size(), 2000u);
}

TEST_F(JobFailureTest, ADaemonThatForgotTheSessionLeavesTheSavedStateNamed) {
  v1::SessionEvent event;
  event.mutable_saved()->set_iteration(40);
  event.mutable_saved()->set_directory("/data/digits");
  event.mutable_saved()->set_host("node7");
  // An extreme age must not erase it either.
  event.mutable_saved()->set_age_ns(std::numeric_limits<std::int64_t>::max());
  daemon_->Say(event);
  daemon_->ForgetSession();
  daemon_->BreakStream(absl::NotFoundError("this daemon does not know the session"));
  EXPECT_THAT(std::string(handle_.Wait().message()),
              AllOf(HasSubstr("was restarted"),
                    HasSubstr("rank 1 knows of is iteration 40 in /data/digits on host node7")));
}

TEST_F(JobFailureTest, VerdictEndsABarrier) {
  daemon_->HoldBarrier(true);
  std::thread judge([this] {
    std::this_thread::sleep_for(milliseconds(30));
    daemon_->GiveVerdict(Verdict());
  });
  const Status status = job_->Barrier();
  judge.join();
  EXPECT_EQ(status.code(), StatusCode::kAborted);
  EXPECT_THAT(status.message(), HasSubstr("rank 2 on node5"));
}

// The daemon ends the session before its stream has said why.
class RefusedCallTest : public JobFailureTest,
                        public ::testing::WithParamInterface<absl::Status> {};

TEST_P(RefusedCallTest, WaitsForTheVerdictThatSaysWhy) {
  daemon_->RefuseKeys(GetParam());
  std::thread judge([this] {
    std::this_thread::sleep_for(milliseconds(100));
    daemon_->GiveVerdict(Verdict());
  });
  const auto key = job_->AddKey("fc2.weight", f32, 1000, None{});
  judge.join();
  EXPECT_EQ(key.status().code(), StatusCode::kAborted);
  EXPECT_THAT(key.status().message(), HasSubstr("rank 2 on node5"));
}

INSTANTIATE_TEST_SUITE_P(Refusals, RefusedCallTest,
                         ::testing::Values(absl::NotFoundError("this session is unknown"),
                                           absl::FailedPreconditionError("the job has ended")));

TEST_F(JobFailureTest, LostLaneWaitsForTheVerdictThatSaysWhy) {
  daemon_->CloseLanes();
  std::this_thread::sleep_for(kLiveness / 4);
  EXPECT_FALSE(handle_.Test());
  daemon_->GiveVerdict(Verdict());
  EXPECT_THAT(handle_.Wait().message(), HasSubstr("rank 2 on node5"));
}

TEST_F(JobFailureTest, LostLaneWithoutAVerdictNamesTheDaemonInTime) {
  const auto start = steady_clock::now();
  daemon_->CloseLanes();
  const Status status = handle_.Wait();
  EXPECT_LT(steady_clock::now() - start, kInTime);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), AllOf(HasSubstr(FakeDaemon::kName), HasSubstr("connection"),
                                      HasSubstr("job digits, rank 1")));
}

TEST_F(JobFailureTest, BrokenStreamIsAttachedAgainAndMeansNothing) {
  daemon_->HoldReplies(false);
  EXPECT_TRUE(handle_.Wait().ok());
  handle_ = Handle();
  for (const absl::Status& status :
       {absl::UnavailableError("Socket closed"), absl::OkStatus(),
        absl::InternalError("RST_STREAM"), absl::CancelledError("by the peer"),
        absl::ResourceExhaustedError("too many streams")}) {
    const int before = daemon_->attended_count();
    daemon_->BreakStream(status);
    while (daemon_->attended_count() == before) std::this_thread::sleep_for(milliseconds(1));
    EXPECT_TRUE(key_->PushPull().Wait().ok());
  }
  EXPECT_TRUE(job_->status().ok()) << ToString(job_->status());
  // Expect: the new stream is the daemon's way to report a verdict.
  daemon_->GiveVerdict(Verdict());
  while (job_->status().ok()) std::this_thread::yield();
  EXPECT_THAT(job_->status().message(), HasSubstr("rank 2 on node5"));
}

TEST_F(JobFailureTest, TrainingContinuesWhileControlCannotBeReached) {
  daemon_->HoldReplies(false);
  EXPECT_TRUE(handle_.Wait().ok());
  handle_ = Handle();
  daemon_->RefuseStreams(absl::UnavailableError("Connection refused"));
  daemon_->BreakStream(absl::UnavailableError("Socket closed"));
  for (const auto end = steady_clock::now() + 4 * kLiveness; steady_clock::now() < end;) {
    EXPECT_TRUE(key_->PushPull().Wait().ok());
    std::this_thread::sleep_for(milliseconds(5));
  }
  // Expect: it tries again, but not in a loop. The pauses grow to a quarter of the timeout.
  EXPECT_GE(daemon_->refused_streams(), 4);
  EXPECT_LE(daemon_->refused_streams(), 40);
  EXPECT_TRUE(job_->status().ok()) << ToString(job_->status());
  daemon_->RefuseStreams(absl::OkStatus());
  while (daemon_->attended_count() < 2) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_TRUE(job_->Leave().ok());
}

TEST_F(JobFailureTest, LanesAndControlThatAreLostTogetherAreADeadDaemon) {
  handle_ = Handle();
  daemon_->GiveVerdict(Verdict());
  EXPECT_FALSE(job_->Leave().ok());
  FakeRack rack({2}, {.liveness_timeout = 3600 * kSecond});
  auto job = rack.Join({.job = "digits"});
  ASSERT_TRUE(job.ok()) << ToString(job.status());
  rack[0].RefuseStreams(absl::UnavailableError("Connection refused"));
  rack[0].CloseLanes();
  rack[0].BreakStream(absl::UnavailableError("Socket closed"));
  const auto start = steady_clock::now();
  while (job->status().ok()) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_LT(steady_clock::now() - start, kInTime);  // long before liveness_timeout
  EXPECT_EQ(job->status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(job->status().message(),
              AllOf(HasSubstr(FakeDaemon::kName), HasSubstr("died or is unreachable (lane to core"),
                    HasSubstr("control plane does not answer either (Connection refused)")));
}

TEST_F(JobFailureTest, RefusalOfTheStreamIsAVerdict) {
  daemon_->BreakStream(absl::AbortedError("rank 1 was taken over by a process on host node9"));
  const Status status = handle_.Wait();
  EXPECT_EQ(status.code(), StatusCode::kAborted);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("ended the session"), HasSubstr("node9")));
}

TEST_F(JobFailureTest, StuckControlEndsNoJobWhileTheLanesLive) {
  daemon_->StickControl();
  while (daemon_->reconnect_count() < 3) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_TRUE(job_->status().ok()) << ToString(job_->status());
}

TEST_F(JobFailureTest, SilentDaemonIsNamedInTime) {
  const auto start = steady_clock::now();
  daemon_->AnswerHeartbeats(false);
  const Status status = handle_.Wait();
  EXPECT_LT(steady_clock::now() - start, kInTime);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr(FakeDaemon::kName), HasSubstr("has been silent on all lanes for")));
}

TEST_F(JobFailureTest, DeadDaemonIsNamedInTime) {
  const auto start = steady_clock::now();
  daemon_->Die();
  const Status status = handle_.Wait();
  EXPECT_LT(steady_clock::now() - start, kInTime);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr(FakeDaemon::kName), HasSubstr("died or is unreachable")));
  EXPECT_EQ(job_->Barrier().code(), StatusCode::kUnavailable);
}

TEST_F(JobFailureTest, BreachOfTheLanesProtocolEndsTheJobAndSaysWhat) {
  handle_ = Handle();
  daemon_->HoldReplies(false);
  while (key_->iteration() == 0) std::this_thread::yield();
  daemon_->BreakNextReply();
  const Status status = key_->PushPull().Wait();
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("an iteration that is not in flight"));
}

TEST_F(JobFailureTest, HandleOfAFailedJobOutlivesIt) {
  daemon_->GiveVerdict(Verdict());
  while (job_->status().ok()) std::this_thread::yield();
  job_.reset();
  EXPECT_EQ(handle_.Wait().code(), StatusCode::kAborted);
}

TEST(Join, NonsenseFromTheDaemonIsRefusedBeforeItSizesAnything) {
  FakeRack rack({2}, {.chunk_bytes = 7});
  const auto job = rack.Join({.job = "digits"});
  EXPECT_EQ(job.status().code(), StatusCode::kInternal);
  EXPECT_THAT(job.status().message(), HasSubstr("chunks of 7 bytes"));
}

TEST(Join, LaneThatIsRefusedGivesTheRankBack) {
  FakeRack rack({2});
  rack[0].RefuseLanes();
  const auto job = rack.Join({.job = "digits"});
  EXPECT_EQ(job.status().code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(rack[0].left_count(), 1);
}

}  // namespace
}  // namespace phub::client
