#include "tests/unit/server/control/control_fixture.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using transport::TransportError;

class FailureTest : public ControlTest {
 protected:
  // Rank `rank` is missing in key `key`, on core 0.
  void StallOn(std::uint32_t rank, std::uint32_t key, std::uint64_t iteration) {
    cores[0]->fill_stalls = [=, this](StallReport& report) {
      StallReport::Entry& entry = report.entries[0];
      entry.key = KeyIndex{key};
      entry.iteration = Iteration{iteration};
      entry.since = clock.now - kSecond;
      entry.chunks_waiting = 1;
      entry.missing[rank / 64] = std::uint64_t{1} << (rank % 64);
      report.count = 1;
    };
  }
  void BeatFor(const std::vector<std::string>& sessions, DurationNs duration) {
    for (const TimeNs end = clock.now + duration; clock.now < end;) {
      for (const std::string& session : sessions) Heartbeat(session);
      Advance(std::min(kSecond / 2, end - clock.now));
    }
  }
};

TEST_F(FailureTest, ASilentRankFailsTheJobByNameWithTheKeyThatWaits) {
  const std::vector<std::string> sessions = EnterAll(3);
  AddKeysOfAll(sessions, {Key("conv", 10), Key("fc1.weight", 10)});
  StallOn(2, 1, 412);
  const auto waiting = Barrier(sessions[0], 0);
  BeatFor({sessions[0], sessions[1]}, options.liveness_timeout - kMillisecond);
  EXPECT_EQ(FaultAt(sessions[0]), nullptr);
  BeatFor({sessions[0], sessions[1]}, 10 * kMillisecond);
  const v1::Fault* fault = FaultAt(sessions[0]);
  ASSERT_NE(fault, nullptr);
  EXPECT_EQ(fault->message(),
            "job digits failed: rank 2 (node2, pid 4702) sent no heartbeat for 2.0 s "
            "(liveness_timeout 2.0 s); key fc1.weight iteration 412 waits for it (worker_silent)");
  EXPECT_EQ(fault->code(), "worker_silent");
  EXPECT_EQ(fault->rank(), 2u);
  EXPECT_TRUE(fault->has_rank());
  EXPECT_EQ(fault->host(), "node2");
  EXPECT_EQ(fault->key(), "fc1.weight");
  EXPECT_EQ(fault->iteration(), 412u);
  EXPECT_EQ(fault->tenant(), "default");
  EXPECT_NEAR(static_cast<double>(fault->age_ns()), 2e9, 0.2e9);
  EXPECT_EQ(waiting->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(waiting->message(), fault->message());
  EXPECT_EQ(AddKeys(Batch(sessions[1], 1, {Key("x", 1)}))->message(), fault->message());
}

TEST_F(FailureTest, TheWorkersHearTheReasonBeforeTheirLanesClose) {
  const std::vector<std::string> sessions = EnterAll(2);
  OpenAllLanes(sessions[0], 0);
  BeatFor({sessions[0]}, options.liveness_timeout + kMillisecond);
  ASSERT_NE(FaultAt(sessions[0]), nullptr);
  EXPECT_TRUE(cores[0]->Executed(Command::Kind::kEndJob).empty());
  EXPECT_EQ(connections_live, 2);
  Advance(options.teardown_delay);
  EXPECT_EQ(cores[0]->Executed(Command::Kind::kEndJob).size(), 1u);
  EXPECT_EQ(connections_live, 0);
  EXPECT_EQ(control().memory_bytes(), 0u);
  EXPECT_EQ(control().job_count(), 0u);
  EXPECT_EQ(sinks[sessions[0]]->end->code(), absl::StatusCode::kAborted);
}

TEST_F(FailureTest, ACoreThatDoesNotReportDelaysTheFailureByABoundedTime) {
  const std::vector<std::string> sessions = EnterAll(2);
  AddKeysOfAll(sessions, {Key("w", 10)});
  cores[1]->silent_on_stalls = true;
  StallOn(1, 0, 7);
  BeatFor({sessions[0]}, options.liveness_timeout + options.diagnosis_timeout - kMillisecond);
  EXPECT_EQ(FaultAt(sessions[0]), nullptr);
  BeatFor({sessions[0]}, 2 * kMillisecond);
  ASSERT_NE(FaultAt(sessions[0]), nullptr);
  // Expect: the other core's report is used.
  EXPECT_THAT(FaultAt(sessions[0])->message(), HasSubstr("key w iteration 7"));
}

TEST_F(FailureTest, ADeadProcessIsToldApartFromALostLane) {
  const std::vector<std::string> sessions = EnterAll(2, "died");
  OpenAllLanes(sessions[1], 1);
  cores[0]->LoseLane(cores[0]->attached[0], TransportError::kReset);
  control().liveness().DetachStream(sessions[1], streams[sessions[1]]);
  Settle();
  EXPECT_EQ(FaultAt(sessions[0]), nullptr);  // a live process may attend again, or report why
  Advance(options.diagnosis_timeout / 2);
  ASSERT_NE(FaultAt(sessions[0]), nullptr);
  EXPECT_EQ(FaultAt(sessions[0])->code(), "worker_died");
  EXPECT_THAT(FaultAt(sessions[0])->message(),
              AllOf(HasSubstr("job died"), HasSubstr("rank 1 (node1, pid 4701) died"),
                    HasSubstr("connection reset"), HasSubstr("core 0")));

  const std::vector<std::string> others = EnterAll(2, "lost");
  OpenAllLanes(others[1], 1);
  Command lane;
  for (const Command& each : cores[1]->attached) lane = each;
  cores[1]->LoseLane(lane, TransportError::kPeerClosed);
  Settle();
  EXPECT_EQ(FaultAt(others[0]), nullptr);  // its stream may turn out to be broken too
  Advance(options.diagnosis_timeout);
  ASSERT_NE(FaultAt(others[0]), nullptr);
  EXPECT_EQ(FaultAt(others[0])->code(), "lane_lost");
  EXPECT_THAT(
      FaultAt(others[0])->message(),
      AllOf(HasSubstr("rank 1 (node1, pid 4701) lost its lane to core 1"),
            HasSubstr("closed by the worker"), HasSubstr("heartbeat"), Not(HasSubstr("died"))));
}

TEST_F(FailureTest, ALaneThatCannotBeServedNamesTheShortage) {
  const std::vector<std::string> sessions = EnterAll(2);
  OpenAllLanes(sessions[1], 1);
  cores[0]->LoseLane(cores[0]->attached[0], TransportError::kLocalClosed, /*refused=*/true);
  Settle();
  Advance(options.diagnosis_timeout);
  ASSERT_NE(FaultAt(sessions[0]), nullptr);
  EXPECT_THAT(FaultAt(sessions[0])->message(),
              AllOf(HasSubstr("rank 1 (node1, pid 4701) lost its lane to core 0"),
                    HasSubstr("fs.epoll.max_user_watches")));
  EXPECT_EQ(Counter("phub_lanes_refused_shortage_total"), 1u);
}

TEST_F(FailureTest, AStreamThatBreaksALittleLaterStillMeansDeath) {
  const std::vector<std::string> sessions = EnterAll(2);
  OpenAllLanes(sessions[1], 1);
  cores[0]->LoseLane(cores[0]->attached[0], TransportError::kReset);
  Settle();
  Advance(10 * kMillisecond);
  EXPECT_EQ(FaultAt(sessions[0]), nullptr);
  control().liveness().DetachStream(sessions[1], streams[sessions[1]]);
  Advance(options.diagnosis_timeout / 2);
  ASSERT_NE(FaultAt(sessions[0]), nullptr);
  EXPECT_EQ(FaultAt(sessions[0])->code(), "worker_died");
}

TEST_F(FailureTest, AStreamThatEndsAloneEndsNoJobAndIsNoSignOfDeathLater) {
  const std::vector<std::string> sessions = EnterAll(2);
  OpenAllLanes(sessions[1], 1);
  control().liveness().DetachStream(sessions[1], streams[sessions[1]]);
  Advance(options.liveness_timeout / 2);
  EXPECT_EQ(FaultAt(sessions[0]), nullptr);
  cores[0]->LoseLane(cores[0]->attached[0], TransportError::kReset);
  for (const std::string& session : sessions) Heartbeat(session);
  Advance(options.diagnosis_timeout);
  ASSERT_NE(FaultAt(sessions[0]), nullptr);
  EXPECT_EQ(FaultAt(sessions[0])->code(), "lane_lost");
  EXPECT_THAT(
      FaultAt(sessions[0])->message(),
      HasSubstr("lost its lane to core 0 (connection reset); it has had no heartbeat stream "
                "for 1.1 s"));
}

TEST_F(FailureTest, AProcessThatAttendsAgainDuringTheDiagnosisIsNotDead) {
  const std::vector<std::string> sessions = EnterAll(2);
  OpenAllLanes(sessions[1], 1);
  cores[0]->LoseLane(cores[0]->attached[0], TransportError::kReset);
  control().liveness().DetachStream(sessions[1], streams[sessions[1]]);
  Advance(10 * kMillisecond);
  ASSERT_TRUE(control().liveness().AttachStream(sessions[1], sinks[sessions[1]]).ok());
  Advance(options.diagnosis_timeout);
  ASSERT_NE(FaultAt(sessions[0]), nullptr);
  EXPECT_EQ(FaultAt(sessions[0])->code(), "lane_lost");
}

// Its verdict from another daemon may arrive after the end of its lanes and its stream.
TEST_F(FailureTest, AVerdictThatArrivesDuringTheDiagnosisIsTheReason) {
  const std::vector<std::string> sessions = EnterAll(2);
  OpenAllLanes(sessions[1], 1);
  control().liveness().DetachStream(sessions[1], streams[sessions[1]]);
  cores[0]->LoseLane(cores[0]->attached[0], TransportError::kPeerClosed);
  Settle();
  v1::LeaveRequest request;
  request.set_session_id(sessions[1]);
  request.set_verdict("job digits failed: rank 7 died");
  control().seats().Leave(request, [](const auto&, const auto&) {});
  ASSERT_NE(FaultAt(sessions[0]), nullptr);
  EXPECT_EQ(FaultAt(sessions[0])->message(), "job digits failed: rank 7 died");
}

TEST_F(FailureTest, FaultsOfCoresNameBothRanksTheKeyAndTheIteration) {
  const std::vector<std::string> sessions = EnterAll(3);
  AddKeysOfAll(sessions, {Key("w", 10)});
  Conflict& conflict = cores[1]->Executed(Command::Kind::kAddJob)[0].shard->conflict;
  conflict.source = {
      .is_known = true, .has_values = true, .values = {.learning_rate = 0.1, .momentum = 0.9}};
  conflict.other = {
      .is_known = true, .has_values = true, .values = {.learning_rate = 0.01, .momentum = 0.9}};
  cores[1]->Emit({.kind = Event::Kind::kFault,
                  .code = FaultCode::kHyperParametersMismatch,
                  .source = Rank{2},
                  .other = Rank{0},
                  .key = KeyIndex{0},
                  .iteration = Iteration{5},
                  .shard = cores[1]->Executed(Command::Kind::kAddJob)[0].shard});
  Settle();
  ASSERT_NE(FaultAt(sessions[1]), nullptr);
  EXPECT_EQ(FaultAt(sessions[1])->code(), "record_mismatch");
  EXPECT_THAT(FaultAt(sessions[1])->message(),
              AllOf(HasSubstr("rank 2 (node2, pid 4702) set learning_rate=0.1 and "),
                    HasSubstr("rank 0 (node0, pid 4700) set learning_rate=0.01;"),
                    HasSubstr("hyper-parameters"), HasSubstr("key w iteration 5")));
}

TEST_F(FailureTest, EveryFaultCodeFailsTheJobAndGivesItsMemoryBack) {
  for (int code = static_cast<int>(FaultCode::kProtocol);
       code <= static_cast<int>(FaultCode::kDepartedRank); ++code) {
    const std::string job = "job" + std::to_string(code);
    const std::string session = Enter(0, 1, job);
    cores[0]->Emit({.kind = Event::Kind::kFault,
                    .code = static_cast<FaultCode>(code),
                    .error = TransportError::kProtocol,
                    .protocol_error = transport::ProtocolError::kSlotRange,
                    .source = Rank{0},
                    .key = KeyIndex::Max(),
                    .shard = cores[0]->Executed(Command::Kind::kAddJob).back().shard});
    Settle();
    ASSERT_NE(FaultAt(session), nullptr) << code;
    EXPECT_EQ(FaultAt(session)->code(), ToString(static_cast<FaultCode>(code)));
    EXPECT_THAT(FaultAt(session)->message(), AllOf(HasSubstr(job), HasSubstr("rank 0 (node0")));
    Advance(options.teardown_delay);
    EXPECT_EQ(control().memory_bytes(), 0u);
  }
}

TEST_F(FailureTest, TheFirstCauseStands) {
  const std::vector<std::string> sessions = EnterAll(2);
  JobShard* const shard = cores[0]->Executed(Command::Kind::kAddJob)[0].shard;
  for (const std::uint32_t rank : {1u, 0u}) {
    cores[0]->Emit({.kind = Event::Kind::kFault,
                    .code = FaultCode::kIterationGap,
                    .source = Rank{rank},
                    .key = KeyIndex::Max(),
                    .shard = shard});
  }
  Settle();
  EXPECT_EQ(FaultAt(sessions[0])->rank(), 1u);
  EXPECT_EQ(Counter("phub_jobs_failed_total"), 1u);
}

TEST_F(FailureTest, OneJobsFaultDoesNotTouchAnother) {
  const std::vector<std::string> sick = EnterAll(2, "sick");
  const std::vector<std::string> well = EnterAll(2, "well");
  BeatFor({well[0], well[1], sick[0]}, 10 * kSecond);
  EXPECT_NE(FaultAt(sick[0]), nullptr);
  EXPECT_EQ(FaultAt(well[0]), nullptr);
  EXPECT_EQ(control().job_count(), 1u);
}

TEST_F(FailureTest, AJoinThatWaitsForCoresIsAnsweredWhenTheJobFails) {
  const std::string session = Enter(0, 2);
  cores[0]->stopped = true;
  const auto keys = AddKeys(Batch(session, 0, {Key("w", 1)}));
  Advance(options.liveness_timeout + options.diagnosis_timeout);
  EXPECT_EQ(keys->code(), absl::StatusCode::kAborted);
  cores[0]->stopped = false;
  Advance(options.teardown_delay);
  EXPECT_EQ(control().memory_bytes(), 0u);
}

TEST_F(FailureTest, AJoinDuringTheDiagnosisStartsANewRun) {
  const std::vector<std::string> sessions = EnterAll(2);
  AddKeysOfAll(sessions, {Key("w", 1)});
  cores[0]->silent_on_stalls = true;
  BeatFor({sessions[0]}, options.liveness_timeout + kMillisecond);
  EXPECT_EQ(FaultAt(sessions[0]), nullptr);
  Enter(1, 2);
  EXPECT_TRUE(last_join.created());
  EXPECT_NE(FaultAt(sessions[0]), nullptr);
}

TEST_F(FailureTest, AJobThatEndsDuringTheDiagnosisKeepsItsReason) {
  const std::vector<std::string> sessions = EnterAll(2);
  AddKeysOfAll(sessions, {Key("w", 1)});
  cores[0]->silent_on_stalls = true;
  BeatFor({sessions[0]}, options.liveness_timeout + kMillisecond);
  EXPECT_EQ(FaultAt(sessions[0]), nullptr);
  v1::EvictJobRequest request;
  request.set_job("digits");
  EvictJob(request);
  Settle();
  ASSERT_NE(FaultAt(sessions[0]), nullptr);
  EXPECT_EQ(FaultAt(sessions[0])->code(), "evicted");
  Advance(2 * options.diagnosis_timeout);
  EXPECT_EQ(FaultAt(sessions[0])->code(), "evicted");
  EXPECT_EQ(Counter("phub_jobs_failed_total"), 1u);
}

TEST_F(FailureTest, SilenceThatIsControlsOwnIsForgiven) {
  const std::vector<std::string> sessions = EnterAll(2);
  // The daemon was suspended for 10 s, and heartbeats are unread.
  clock.now += 10 * kSecond;
  Settle();
  EXPECT_EQ(FaultAt(sessions[0]), nullptr);
  EXPECT_EQ(Counter("phub_silence_forgiven_total"), 1u);
  BeatFor({sessions[0]}, options.liveness_timeout + kMillisecond);
  ASSERT_NE(FaultAt(sessions[0]), nullptr);
  EXPECT_EQ(FaultAt(sessions[0])->rank(), 1u);
}

TEST_F(FailureTest, AHostThatIsAlwaysLateStillNoticesTheDead) {
  const std::string session = Enter(0, 1);
  for (int i = 0; i < 10 && FaultAt(session) == nullptr; ++i) {
    clock.now += 3 * kSecond;
    Settle();
  }
  EXPECT_NE(FaultAt(session), nullptr);
}

TEST_F(FailureTest, DrainingRefusesNewJobsTellsSessionsAndFailsWhatIsLeft) {
  const std::vector<std::string> sessions = EnterAll(2);
  control().draining().Drain(5 * kSecond);
  EXPECT_FALSE(control().draining().Drained());
  EXPECT_EQ(sinks[sessions[0]]->events.back().draining().deadline_ns(), 5 * kSecond);
  const auto fresh = Join(JoinOf(0, 1, "fresh"));
  EXPECT_EQ(fresh->code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(fresh->message(), HasSubstr("draining"));
  BeatFor(sessions, 5 * kSecond - kMillisecond);
  EXPECT_EQ(FaultAt(sessions[0]), nullptr);
  BeatFor(sessions, 2 * kMillisecond);
  ASSERT_NE(FaultAt(sessions[0]), nullptr);
  EXPECT_EQ(FaultAt(sessions[0])->code(), "daemon_stopped");
  Advance(options.teardown_delay);
  EXPECT_TRUE(control().draining().Drained());
  EXPECT_EQ(control().memory_bytes(), 0u);
}

TEST_F(FailureTest, DrainingWaitsForJobsThatEndInTime) {
  const std::string session = Enter(0, 1);
  control().draining().Drain(5 * kSecond);
  Leave(session);
  Settle();
  EXPECT_TRUE(control().draining().Drained());
  EXPECT_EQ(FaultAt(session), nullptr);
}

}  // namespace
}  // namespace phub::server
