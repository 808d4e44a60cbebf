// Reservations: the place that Join grants is a lease until Commit.
#include "tests/unit/server/control/control_fixture.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class SeatsTest : public ControlTest {};

TEST_F(SeatsTest, AReservationThatIsNotCommittedLapsesAndItsJobIsGoneAtOnce) {
  const std::string session = ReserveAs(JoinOf(0, 2));
  EXPECT_GT(control().memory_bytes(), 0u);
  Advance(options.liveness_timeout - 1);
  EXPECT_EQ(control().job_count(), 1u);
  Advance(1);
  // Expect: everything is released, without a fault.
  EXPECT_EQ(control().job_count(), 0u);
  EXPECT_EQ(control().memory_bytes(), 0u);
  EXPECT_EQ(Counter("phub_reservations_lapsed_total"), 1u);
  EXPECT_EQ(Counter("phub_jobs_failed_total"), 0u);
  const auto late = Commit(session);
  EXPECT_EQ(late->code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(late->message(), HasSubstr("reservation expired"));
}

TEST_F(SeatsTest, AWorkerThatWillKeepItsLanesAliveHasMoreTimeToCommit) {
  v1::JoinRequest request = JoinOf(0, 1);
  request.set_keeps_lanes(true);
  const std::string session = ReserveAs(request);
  Advance(5 * options.liveness_timeout - 1);
  EXPECT_EQ(control().job_count(), 1u);
  Advance(1);
  EXPECT_EQ(control().job_count(), 0u);
  EXPECT_THAT(Commit(session)->message(), HasSubstr("reservation expired"));
}

TEST_F(SeatsTest, AReservationIsKeptUpByHeartbeats) {
  const std::string session = ReserveAs(JoinOf(0, 1));
  for (int i = 0; i < 8; ++i) {
    Advance(options.liveness_timeout / 2);
    Heartbeat(session);
  }
  EXPECT_TRUE(Commit(session)->ok());
}

TEST_F(SeatsTest, ALapsedSeatIsFreeAgainAndTheOthersStay) {
  const std::string first = Enter(0, 2);
  ReserveAs(JoinOf(1, 2));
  EXPECT_EQ(Join(JoinOf(1, 2))->code(), absl::StatusCode::kAlreadyExists);
  for (int i = 0; i < 4; ++i) {
    Heartbeat(first);
    Advance(options.liveness_timeout / 2);
  }
  EXPECT_EQ(Counter("phub_reservations_lapsed_total"), 1u);
  EXPECT_EQ(FaultAt(first), nullptr);
  Heartbeat(first);
  Enter(1, 2);
  EXPECT_EQ(control().job_count(), 1u);
}

TEST_F(SeatsTest, ARankThatCommitsAfterTheOthersLeftKeepsTheJob) {
  const std::string first = Enter(0, 2);
  const std::string second = ReserveAs(JoinOf(1, 2));
  Leave(first);
  EXPECT_TRUE(Commit(second)->ok());
  for (const TimeNs end = clock.now + 2 * options.abandoned_timeout; clock.now < end;) {
    Heartbeat(second);
    Advance(options.liveness_timeout / 2);
  }
  EXPECT_EQ(control().job_count(), 1u);
  EXPECT_EQ(Counter("phub_jobs_abandoned_total"), 0u);
}

TEST_F(SeatsTest, LeavingBeforeCommitGivesEverythingBackAtOnce) {
  const std::string session = ReserveAs(JoinOf(0, 2));
  const auto leave = Leave(session);
  EXPECT_TRUE(leave->ok()) << leave->message();
  Settle();
  EXPECT_EQ(control().memory_bytes(), 0u);
  EXPECT_EQ(control().job_count(), 0u);
  EXPECT_EQ(Counter("phub_reservations_returned_total"), 1u);
  // Expect: the rank may join again, in a new run.
  Enter(0, 2);
  EXPECT_TRUE(last_join.created());
}

TEST_F(SeatsTest, LeavingBeforeCommitFreesOneSeatOnly) {
  const std::string first = Enter(0, 2);
  const std::string second = ReserveAs(JoinOf(1, 2));
  Leave(second);
  Settle();
  EXPECT_EQ(FaultAt(first), nullptr);
  Enter(1, 2);
  EXPECT_FALSE(last_join.created());
}

TEST_F(SeatsTest, KeysLanesAndBarriersNeedACommittedSession) {
  const std::string session = ReserveAs(JoinOf(0, 1));
  const auto refused = [](const auto& call) {
    EXPECT_EQ(call->code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(call->message(), AllOf(HasSubstr("rank 0 (node0)"), HasSubstr("Commit")));
  };
  refused(AddKeys(Batch(session, 0, {Key("a", 1)})));
  refused(OpenLanesOf(session));
  refused(Barrier(session, 0));
  EXPECT_EQ(Counter("phub_calls_uncommitted_total"), 3u);
  EXPECT_TRUE(Commit(session)->ok());
  EXPECT_TRUE(Commit(session)->ok());  // repeated
  EXPECT_EQ(Counter("phub_commits_total"), 1u);
  EXPECT_TRUE(OpenLanesOf(session)->ok());
  EXPECT_TRUE(Barrier(session, 0)->ok());
}

TEST_F(SeatsTest, AReservationDoesNotLapseBeforeItsJoinIsAnswered) {
  control();
  cores[1]->stopped = true;
  const auto call = Join(JoinOf(0, 1));
  Advance(2 * options.liveness_timeout);
  EXPECT_FALSE(call->answered());
  cores[1]->stopped = false;
  Settle();
  ASSERT_TRUE(call->ok()) << call->message();
  EXPECT_TRUE(Commit(call->response.session_id())->ok());
}

TEST_F(SeatsTest, ReservedRanksAreShownAsSuch) {
  ReserveAs(JoinOf(1, 2));
  v1::GetJobRequest request;
  request.set_job("digits");
  const auto job = GetJob(request);
  ASSERT_TRUE(job->ok());
  EXPECT_EQ(job->response.workers(0).state(), "awaited");
  EXPECT_EQ(job->response.workers(1).state(), "reserved");
}

TEST_F(SeatsTest, AJobWhoseCommittedRanksLeftIsAbandonedWhenItsLastReservationLapses) {
  const std::string first = Enter(0, 3);
  ReserveAs(JoinOf(1, 3));
  Leave(first);
  Advance(options.liveness_timeout);
  EXPECT_EQ(control().job_count(), 1u);
  Advance(options.abandoned_timeout);
  EXPECT_EQ(control().job_count(), 0u);
  EXPECT_EQ(control().memory_bytes(), 0u);
}

}  // namespace
}  // namespace phub::server
