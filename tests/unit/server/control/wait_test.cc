#include "tests/unit/server/control/control_fixture.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using transport::TransportError;

class WaitTest : public ControlTest {
 protected:
  static constexpr DurationNs kWait = 10 * kSecond;

  static v1::JoinRequest Waiting(std::uint32_t rank, bool restart) {
    v1::JoinRequest request = JoinOf(rank, 2);
    request.mutable_options()->set_on_loss(v1::LOSS_POLICY_WAIT);
    request.mutable_options()->set_wait_timeout_ns(kWait);
    request.mutable_options()->set_restart(restart);
    return request;
  }
  void EnterBoth(bool restart) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      sessions.push_back(EnterAs(Waiting(rank, restart)));
    }
  }
  void BreakStream(const std::string& session) {
    control().liveness().DetachStream(session, streams[session]);
    sinks[session] = std::make_shared<RecordingSink>();
  }
  void Reattach(const std::string& session) {
    const auto stream = control().liveness().AttachStream(session, sinks[session]);
    ASSERT_TRUE(stream.ok());
    streams[session] = *stream;
  }
  void Lose(std::uint32_t rank) { Die(sessions[rank], rank, Rank{rank}); }
  void Return(std::uint32_t rank) {
    Reattach(sessions[rank]);
    OpenAllLanes(sessions[rank], rank);
  }
  // Only rank 0 sends heartbeats.
  void BeatFor(DurationNs duration) {
    for (const TimeNs end = clock.now + duration; clock.now < end;) {
      Heartbeat(sessions[0]);
      Advance(std::min(kSecond / 4, end - clock.now));
    }
  }
  v1::WorkerInfo Worker(std::uint32_t rank) {
    v1::GetJobRequest request;
    request.set_job("digits");
    return GetJob(request)->response.workers(static_cast<int>(rank));
  }
  std::vector<v1::SessionEvent> EventsOf(std::size_t rank) {
    std::vector<v1::SessionEvent> events;
    for (const v1::SessionEvent& event : sinks[sessions[rank]]->events) {
      if (event.has_awaited() || event.has_returned()) events.push_back(event);
    }
    return events;
  }

  std::vector<std::string> sessions;
};

TEST_F(WaitTest, AStreamThatBreaksIsNoLoss) {
  for (const bool restart : {false, true}) {
    sessions.clear();
    EnterBoth(restart);
    OpenAllLanes(sessions[1], 1);
    BreakStream(sessions[1]);
    Settle();
    EXPECT_EQ(Worker(1).state(), "live");
    EXPECT_EQ(EventsOf(0).size(), 0u);
    // Expect: it is no right to the seat either, and its calls continue.
    EXPECT_EQ(Join(Waiting(1, restart))->code(), absl::StatusCode::kAlreadyExists);
    EXPECT_FALSE(Barrier(sessions[1], 0)->answered());
    Advance(options.liveness_timeout / 2 - kMillisecond);
    Heartbeat(sessions[0]);
    EXPECT_EQ(Join(Waiting(1, restart))->code(), absl::StatusCode::kAlreadyExists);
    Reattach(sessions[1]);
    EXPECT_EQ(EventsOf(0).size(), 0u);
    EXPECT_EQ(Counter("phub_ranks_lost_total"), 0u);
    Leave(sessions[0]);
    Leave(sessions[1]);
    Settle();
  }
}

TEST_F(WaitTest, ALaneThatIsLostGivesNobodyTheSeatOfAProcessThatBeats) {
  EnterBoth(/*restart=*/true);
  OpenAllLanes(sessions[1], 1);
  cores[1]->CloseLane(cores[1]->attached[0], TransportError::kReset);
  Settle();
  EXPECT_EQ(Worker(1).state(), "lost");
  EXPECT_EQ(Join(Waiting(1, true))->code(), absl::StatusCode::kAlreadyExists);
  // Receive: its stream ends, but it still has a lane.
  BreakStream(sessions[1]);
  EXPECT_EQ(Join(Waiting(1, true))->code(), absl::StatusCode::kAlreadyExists);
  cores[0]->CloseLane(cores[0]->attached[0], TransportError::kReset);
  Settle();
  EXPECT_TRUE(Join(Waiting(1, true))->ok());
}

TEST_F(WaitTest, AnOutageOfTheControlPortUsesUpNoWait) {
  EnterBoth(/*restart=*/false);
  Lose(1);
  BeatFor(kWait / 2);
  control().liveness().NoteOutage(clock.now - kSecond);
  BeatFor(3 * kWait);
  EXPECT_EQ(Worker(1).state(), "lost");
  EXPECT_GT(control().NextDeadline(), clock.now) << "spins";
  control().liveness().NoteOutage(0);
  EXPECT_EQ(Worker(1).awaited_for_ns(), kWait / 2 + kSecond);
  BeatFor(kWait / 2);
  EXPECT_EQ(FaultAt(sessions[0]), nullptr);
  BeatFor(2 * kSecond);
  ASSERT_NE(FaultAt(sessions[0]), nullptr);
  EXPECT_THAT(FaultAt(sessions[0])->message(), HasSubstr("rank 1"));
}

TEST_F(WaitTest, AnOutageWithoutAnEndExtendsNoWaitForEver) {
  EnterBoth(/*restart=*/false);
  Lose(1);
  control().liveness().NoteOutage(clock.now);
  BeatFor(kOutageMax - kSecond);
  EXPECT_EQ(FaultAt(sessions[0]), nullptr);
  BeatFor(2 * kSecond);
  EXPECT_NE(FaultAt(sessions[0]), nullptr);
}

TEST_F(WaitTest, ALostRankIsAwaitedAndTheSameProcessComesBack) {
  EnterBoth(/*restart=*/false);
  Lose(1);
  Settle();
  EXPECT_EQ(Worker(1).state(), "lost");
  EXPECT_EQ(Worker(1).awaited_for_ns(), kWait);
  ASSERT_EQ(EventsOf(0).size(), 1u);
  EXPECT_EQ(EventsOf(0)[0].awaited().rank(), 1u);
  EXPECT_EQ(EventsOf(0)[0].awaited().host(), "node1");
  EXPECT_EQ(EventsOf(0)[0].awaited().deadline_ns(), kWait);
  BeatFor(kWait - kSecond);
  EXPECT_EQ(Worker(1).awaited_for_ns(), kSecond);
  Return(1);
  EXPECT_EQ(Worker(1).state(), "live");
  ASSERT_EQ(EventsOf(0).size(), 2u);
  EXPECT_EQ(EventsOf(0)[1].returned().rank(), 1u);
  EXPECT_FALSE(EventsOf(0)[1].returned().restarted());
  EXPECT_EQ(FaultAt(sessions[0]), nullptr);
}

TEST_F(WaitTest, ALaneThatIsLostIsAwaitedUntilItIsOpenedAgain) {
  EnterBoth(/*restart=*/false);
  OpenAllLanes(sessions[1], 1);
  cores[1]->CloseLane(cores[1]->attached[0], TransportError::kReset);
  Settle();
  EXPECT_EQ(Worker(1).state(), "lost");
  EXPECT_THAT(Worker(1).loss(), AllOf(HasSubstr("lane to core 1"), HasSubstr("connection reset")));
  // Expect: a heartbeat alone does not restore the lane.
  Heartbeat(sessions[1]);
  EXPECT_EQ(Worker(1).state(), "lost");
  OpenAllLanes(sessions[1], 1);
  EXPECT_EQ(Worker(1).state(), "live");
  // Expect: the replaced lane of core 0 closes later, which is not a loss.
  cores[0]->CloseLane(cores[0]->attached[0], TransportError::kLocalClosed);
  Settle();
  EXPECT_EQ(Worker(1).state(), "live");
}

TEST_F(WaitTest, AWorkerThatReconnectsFasterThanControlNoticesIsRefused) {
  EnterBoth(/*restart=*/false);
  OpenAllLanes(sessions[1], 1);
  int admitted = 0;
  for (int i = 0; i < 50; ++i) {
    const auto grants = OpenLanesOf(sessions[1]);
    const wire::LaneHello hello = HelloOf(grants->response, 1, 0);
    const wire::LaneRefusal refusal = control().lanes().AdmitLane(hello);
    if (refusal == wire::LaneRefusal::kNone) {
      Attach(hello);
      ++admitted;
    } else {
      EXPECT_EQ(refusal, wire::LaneRefusal::kBusy);
    }
  }
  EXPECT_EQ(admitted, 8);
  Settle();
  // Expect: it may return once the old lanes are closed.
  const std::vector<Command> lanes = cores[0]->attached;
  for (const Command& lane : lanes) cores[0]->CloseLane(lane, TransportError::kReset);
  Settle();
  OpenAllLanes(sessions[1], 1);
  EXPECT_EQ(Worker(1).state(), "live");
}

TEST_F(WaitTest, ASilentRankIsAwaitedFailsAtTheDeadlineAndIsNamed) {
  EnterBoth(/*restart=*/false);
  AddKeysOfAll(sessions, {Key("fc1.weight", 10)});
  cores[0]->fill_stalls = [this](StallReport& report) {
    report.entries[0].key = KeyIndex{0};
    report.entries[0].iteration = Iteration{7};
    report.entries[0].since = clock.now - kSecond;
    report.entries[0].missing[0] = 2;
    report.count = 1;
  };
  BeatFor(options.liveness_timeout + kSecond / 2);
  EXPECT_EQ(Worker(1).state(), "lost");
  EXPECT_EQ(FaultAt(sessions[0]), nullptr);
  BeatFor(kWait);
  const v1::Fault* fault = FaultAt(sessions[0]);
  ASSERT_NE(fault, nullptr);
  EXPECT_EQ(fault->code(), "worker_lost");
  EXPECT_THAT(fault->message(),
              AllOf(HasSubstr("job digits failed: rank 1 (node1, pid 4701) was lost 10.0 s ago"),
                    HasSubstr("its heartbeats stopped"), HasSubstr("wait_timeout (10.0 s)"),
                    HasSubstr("key fc1.weight iteration 7")));
  EXPECT_EQ(fault->rank(), 1u);
}

TEST_F(WaitTest, ARankThatReturnsDuringTheDiagnosisSavesTheJob) {
  EnterBoth(/*restart=*/false);
  AddKeysOfAll(sessions, {Key("w", 10)});
  cores[0]->silent_on_stalls = true;
  Lose(1);
  Settle();
  for (const TimeNs end = clock.now + kWait + kMillisecond; clock.now < end;) {
    Heartbeat(sessions[0]);
    Heartbeat(sessions[1]);
    Advance(std::min(kSecond / 2, end - clock.now));
  }
  EXPECT_EQ(Counter("phub_ranks_awaited_in_vain_total"), 1u);
  EXPECT_EQ(FaultAt(sessions[0]), nullptr);
  Return(1);
  Heartbeat(sessions[0]);
  Advance(kSecond);
  EXPECT_EQ(FaultAt(sessions[0]), nullptr);
  EXPECT_EQ(Worker(1).state(), "live");
}

TEST_F(WaitTest, ANewProcessTakesTheRankOverWithRestart) {
  EnterBoth(/*restart=*/true);
  AddKeysOfAll(sessions, {Key("w", 10)});
  OpenAllLanes(sessions[1], 1);
  const std::string old = sessions[1];
  Lose(1);
  Settle();
  const std::string fresh = ReserveAs(Waiting(1, true));
  EXPECT_TRUE(last_join.resumed());
  EXPECT_EQ(last_join.wait_timeout_ns(), kWait);
  // Expect: the rank is still awaited until it commits.
  EXPECT_EQ(EventsOf(0).size(), 1u);
  EXPECT_TRUE(Commit(fresh)->ok());
  ASSERT_EQ(EventsOf(0).size(), 2u);
  EXPECT_TRUE(EventsOf(0)[1].returned().restarted());
  EXPECT_EQ(Worker(1).state(), "live");
  EXPECT_EQ(Worker(1).restarts(), 1u);
  // Expect: its keys are compared with the original ones, from batch 0.
  const auto keys = AddKeys(Batch(fresh, 0, {Key("w", 10)}));
  Settle();
  EXPECT_TRUE(keys->ok()) << keys->message();
  // Expect: every call of the old process is refused with the reason.
  const absl::Status beat = control().liveness().Heartbeat(old, 99);
  EXPECT_EQ(beat.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(beat.message()), HasSubstr("taken over by a process on host node1"));
  EXPECT_EQ(AddKeys(Batch(old, 1, {Key("x", 1)}))->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Leave(old)->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(connections_live, 0);
}

TEST_F(WaitTest, AProcessThatLivesKeepsItsRank) {
  EnterBoth(/*restart=*/true);
  OpenAllLanes(sessions[1], 1);
  const auto refused = Join(Waiting(1, true));
  Settle();
  EXPECT_EQ(refused->code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(refused->message(), HasSubstr("live worker on host node1, pid 4701"));
  // Receive: no heartbeat from it for over half of the liveness timeout.
  BeatFor(options.liveness_timeout / 2 + kSecond / 4);
  const std::string fresh = ReserveAs(Waiting(1, true));
  EXPECT_TRUE(last_join.resumed());
  EXPECT_TRUE(Commit(fresh)->ok());
  // Expect: the old lanes' end is not a loss of the new process.
  for (const auto& core : cores) core->CloseLane(core->attached[0], TransportError::kPeerClosed);
  Settle();
  EXPECT_EQ(Worker(1).state(), "live");
  EXPECT_EQ(connections_live, 0);
}

TEST_F(WaitTest, WithoutRestartANewProcessIsToldOfTheOption) {
  EnterBoth(/*restart=*/false);
  Lose(1);
  Settle();
  const auto refused = Join(Waiting(1, false));
  Settle();
  EXPECT_EQ(refused->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused->message(), HasSubstr("restart=true"));
}

TEST_F(WaitTest, ATakeoverThatIsNotCommittedLeavesTheRankAwaited) {
  EnterBoth(/*restart=*/true);
  Lose(1);
  Settle();
  const TimeNs lost_at = clock.now;
  const std::string fresh = ReserveAs(Waiting(1, true));
  BeatFor(options.liveness_timeout + kSecond / 2);
  EXPECT_EQ(Worker(1).state(), "lost");
  EXPECT_EQ(Commit(fresh)->code(), absl::StatusCode::kNotFound);
  // Receive: one more process, which releases its reservation.
  const std::string third = ReserveAs(Waiting(1, true));
  EXPECT_TRUE(Leave(third)->ok());
  EXPECT_EQ(Worker(1).state(), "lost");
  EXPECT_THAT(Worker(1).loss(), HasSubstr("to replace it gave up"));
  // Expect: the deadline of the first loss applies.
  BeatFor(lost_at + kWait - clock.now - kMillisecond);
  EXPECT_EQ(FaultAt(sessions[0]), nullptr);
  BeatFor(options.diagnosis_timeout);
  ASSERT_NE(FaultAt(sessions[0]), nullptr);
}

TEST_F(WaitTest, BarriersCountAcrossARestart) {
  EnterBoth(/*restart=*/true);
  // Receive: barrier 0 from both; barrier 1 from rank 1 only, which then dies.
  const auto first = Barrier(sessions[0], 0);
  EXPECT_TRUE(Barrier(sessions[1], 0)->ok());
  EXPECT_TRUE(first->ok());
  const auto orphan = Barrier(sessions[1], 1);
  Lose(1);
  Settle();
  const std::string fresh = ReserveAs(Waiting(1, true));
  ASSERT_TRUE(Commit(fresh)->ok());
  EXPECT_EQ(orphan->code(), absl::StatusCode::kAborted);
  // Expect: a completed barrier is answered at once, and the predecessor's calls count.
  EXPECT_TRUE(Barrier(fresh, 0)->ok());
  EXPECT_TRUE(Barrier(sessions[0], 1)->ok());
  EXPECT_TRUE(Barrier(fresh, 1)->ok());
  const auto second = Barrier(sessions[0], 2);
  EXPECT_FALSE(second->answered());
  // Expect: a repeated call replaces the previous one.
  const auto again = Barrier(sessions[0], 2);
  EXPECT_EQ(second->code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(Barrier(fresh, 2)->ok());
  EXPECT_TRUE(again->ok());
}

TEST_F(WaitTest, ALostRankMayLeaveAndTheJobEnds) {
  EnterBoth(/*restart=*/false);
  Lose(1);
  EXPECT_FALSE(Leave(sessions[0])->answered());
  Settle();
  Advance(kSecond);
  EXPECT_EQ(control().job_count(), 1u);  // a rank may come back
  Leave(sessions[1]);
  Settle();
  EXPECT_EQ(control().job_count(), 0u);
  EXPECT_EQ(control().memory_bytes(), 0u);
}

TEST_F(WaitTest, OptionsMustBeAgreedOnAndMakeSense) {
  EnterAs(Waiting(0, true));
  v1::JoinRequest other = Waiting(1, false);
  EXPECT_THAT(Join(other)->message(), HasSubstr("restart=false"));
  other = Waiting(1, true);
  other.mutable_options()->set_wait_timeout_ns(kSecond);
  EXPECT_THAT(Join(other)->message(), HasSubstr("wait_timeout 1 s"));
  other = JoinOf(0, 1, "strange");
  other.mutable_options()->set_restart(true);
  EXPECT_EQ(Join(other)->code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(WaitTest, ThoseWhoComeLaterHearOfWhoIsAwaited) {
  EnterBoth(/*restart=*/false);
  Lose(0);
  Lose(1);
  Advance(kSecond);
  Reattach(sessions[0]);
  ASSERT_EQ(EventsOf(0).size(), 1u);
  EXPECT_EQ(EventsOf(0)[0].awaited().rank(), 1u);
  EXPECT_EQ(EventsOf(0)[0].awaited().deadline_ns(), kWait - kSecond);
}

}  // namespace
}  // namespace phub::server
