#include "tests/unit/server/control/control_fixture.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class SessionsTest : public ControlTest {};

TEST_F(SessionsTest, BarriersAreAnsweredWhenEveryRankHasCome) {
  const std::vector<std::string> sessions = EnterAll(3);
  const auto first = Barrier(sessions[2], 0);
  const auto second = Barrier(sessions[0], 0);
  EXPECT_FALSE(first->answered());
  const auto third = Barrier(sessions[1], 0);
  EXPECT_TRUE(first->ok() && second->ok() && third->ok());
  // A repeated call for a completed barrier succeeds. The next barrier waits for all ranks again.
  EXPECT_TRUE(Barrier(sessions[0], 0)->ok());
  EXPECT_FALSE(Barrier(sessions[0], 1)->answered());
}

TEST_F(SessionsTest, BarriersOfOneWorkerMayCross) {
  const std::vector<std::string> sessions = EnterAll(2);
  const auto later = Barrier(sessions[0], 1);
  const auto sooner = Barrier(sessions[0], 0);
  EXPECT_TRUE(Barrier(sessions[1], 0)->ok());
  EXPECT_TRUE(sooner->ok());
  EXPECT_FALSE(later->answered());
  EXPECT_TRUE(Barrier(sessions[1], 1)->ok());
  EXPECT_TRUE(later->ok());
}

TEST_F(SessionsTest, ABarrierThatIsCalledAgainAnswersTheLaterCall) {
  const std::vector<std::string> sessions = EnterAll(2);
  const auto first = Barrier(sessions[0], 0);
  const auto again = Barrier(sessions[0], 0);
  EXPECT_EQ(first->code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(Barrier(sessions[1], 0)->ok());
  EXPECT_TRUE(again->ok());
}

TEST_F(SessionsTest, BarriersFarAheadAreRefused) {
  const std::vector<std::string> sessions = EnterAll(2);
  EXPECT_EQ(Barrier(sessions[0], 1'000'000)->code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SessionsTest, ABarrierThatADepartedRankNeverReachesIsRefusedByName) {
  const std::vector<std::string> sessions = EnterAll(2);
  const auto waiting = Barrier(sessions[0], 0);
  Leave(sessions[1]);
  EXPECT_EQ(waiting->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(waiting->message(), AllOf(HasSubstr("barrier 0"), HasSubstr("rank 1 (node1")));
  EXPECT_EQ(Barrier(sessions[0], 0)->code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(SessionsTest, LeavingIsAnsweredOnceTheCoresKnowAndTheLastOneEndsTheJob) {
  const std::vector<std::string> sessions = EnterAll(2);
  AddKeysOfAll(sessions, {Key("w", 1000)});
  OpenAllLanes(sessions[0], 0);
  const auto first = Leave(sessions[0]);
  EXPECT_FALSE(first->answered());
  Settle();
  EXPECT_TRUE(first->ok());
  EXPECT_EQ(cores[1]->Executed(Command::Kind::kRankLeft).size(), 1u);
  EXPECT_TRUE(Leave(sessions[0])->ok());  // repeated
  EXPECT_EQ(control().job_count(), 1u);
  EXPECT_TRUE(cores[0]->Executed(Command::Kind::kEndJob).empty());
  // A rank that left need not send heartbeats.
  for (int i = 0; i < 10; ++i) {
    Heartbeat(sessions[1]);
    Advance(kSecond);
  }
  EXPECT_EQ(FaultAt(sessions[1]), nullptr);
  EXPECT_EQ(AddKeys(Batch(sessions[0], 1, {Key("v", 1)}))->code(),
            absl::StatusCode::kFailedPrecondition);
  const auto last = Leave(sessions[1]);
  Settle();
  EXPECT_TRUE(last->ok());
  EXPECT_EQ(control().job_count(), 0u);
  EXPECT_EQ(control().memory_bytes(), 0u);
  EXPECT_EQ(connections_live, 0);
  ASSERT_TRUE(sinks[sessions[1]]->end.has_value());
  EXPECT_TRUE(sinks[sessions[1]]->end->ok());
  EXPECT_EQ(GetJob([] {
              v1::GetJobRequest request;
              request.set_job("digits");
              return request;
            }())
                ->response.state(),
            "ended");
}

TEST_F(SessionsTest, RanksThatLeaveAtOnceAreAllAnsweredBeforeTheJobEnds) {
  const std::vector<std::string> sessions = EnterAll(2);
  const auto first = Leave(sessions[0]);
  const auto second = Leave(sessions[1]);
  // The cores acknowledge the first, and the second a little later.
  cores[0]->Run();
  control().Poll();
  EXPECT_FALSE(first->answered() || second->answered());
  Settle();
  EXPECT_TRUE(first->ok()) << first->message();
  EXPECT_TRUE(second->ok()) << second->message();
  EXPECT_EQ(control().job_count(), 0u);
}

TEST_F(SessionsTest, AJobThatNobodyIsInAnyMoreEnds) {
  const std::string session = Enter(0, 2);  // rank 1 never joins
  Leave(session);
  Settle();
  Advance(options.abandoned_timeout - kSecond);
  EXPECT_EQ(control().job_count(), 1u);
  Advance(2 * kSecond);
  EXPECT_EQ(control().job_count(), 0u);
  EXPECT_EQ(control().memory_bytes(), 0u);
}

TEST_F(SessionsTest, HeartbeatsAreAnsweredOnTheStream) {
  const std::string session = Enter(0, 1);
  EXPECT_TRUE(control().liveness().Heartbeat(session, 77).ok());
  ASSERT_FALSE(sinks[session]->events.empty());
  EXPECT_EQ(sinks[session]->events.back().heartbeat().sequence(), 77u);
  EXPECT_EQ(control().liveness().Heartbeat("nobody", 1).code(), absl::StatusCode::kNotFound);
}

TEST_F(SessionsTest, ANewerStreamTakesOverAndTheOlderOnesEndChangesNothing) {
  const std::string session = Enter(0, 1);
  auto newer = std::make_shared<RecordingSink>();
  ASSERT_TRUE(control().liveness().AttachStream(session, newer).ok());
  ASSERT_TRUE(sinks[session]->end.has_value());
  EXPECT_EQ(sinks[session]->end->code(), absl::StatusCode::kAborted);
  control().liveness().DetachStream(session, streams[session]);
  EXPECT_TRUE(control().liveness().Heartbeat(session, 5).ok());
  EXPECT_EQ(newer->events.size(), 1u);
}

TEST_F(SessionsTest, AStreamThatComesBackLearnsThatTheJobFailed) {
  const std::string session = Enter(0, 1);
  Advance(options.liveness_timeout);
  auto late = std::make_shared<RecordingSink>();
  ASSERT_TRUE(control().liveness().AttachStream(session, late).ok());
  ASSERT_NE(late->fault(), nullptr);
  Advance(kSecond);
  EXPECT_EQ(late->end->code(), absl::StatusCode::kAborted);
  auto later = std::make_shared<RecordingSink>();
  ASSERT_TRUE(control().liveness().AttachStream(session, later).ok());
  EXPECT_NE(later->fault(), nullptr);
  EXPECT_TRUE(later->end.has_value());
}

}  // namespace
}  // namespace phub::server
