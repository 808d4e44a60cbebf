#include "tests/unit/server/control/checkpoint_fixture.h"

namespace phub::server {
namespace {

using ::testing::HasSubstr;

class SnapshotTest : public CheckpointTest {
 protected:
  // Expect: every element of every tensor exactly once, with its value after that many reductions.
  static void ExpectCheckpointAt(const RecordingSnapshotSink& sink, std::uint64_t reductions) {
    ASSERT_TRUE(sink.end.has_value());
    ASSERT_TRUE(sink.end->ok()) << *sink.end;
    ASSERT_FALSE(sink.parts.empty());
    ASSERT_EQ(sink.parts[0].keys_size(), 2);
    EXPECT_EQ(sink.parts[0].keys(0).reductions(), reductions);
    EXPECT_EQ(sink.parts[0].keys(0).applied(), reductions);
    EXPECT_DOUBLE_EQ(sink.parts[0].keys(1).hyper_parameters().learning_rate(), 0.1f);
    std::map<std::tuple<std::uint32_t, int, std::uint64_t>, float> elements;
    for (const v1::SnapshotPart& part : sink.parts) {
      for (const v1::StatePiece& piece : part.pieces()) {
        for (std::size_t i = 0; i < piece.elements().size() / sizeof(float); ++i) {
          float value = 0;
          std::memcpy(&value, piece.elements().data() + i * sizeof(float), sizeof(float));
          const auto where = std::tuple(piece.key_index(), static_cast<int>(piece.tensor()),
                                        piece.element_offset() + i);
          EXPECT_TRUE(elements.emplace(where, value).second) << "sent twice";
          const float expected = ValueOf(reductions, piece.element_offset() + i);
          EXPECT_EQ(value, piece.tensor() == v1::STATE_TENSOR_PARAMETERS ? expected : -expected);
        }
      }
    }
    EXPECT_EQ(elements.size(), 2u * (600 + 300));
  }
};

TEST_F(SnapshotTest, VersionsAreMergedOverCoreLoops) {
  Train(3);
  ++Shard(*cores[1]).chunks()[0]->reductions;
  v1::GetVersionsRequest request;
  request.set_session_id(sessions[0]);
  const auto first = GetVersions(request);
  v1::GetJobVersionsRequest admin;
  admin.set_job("digits");
  const auto second = GetJobVersions(admin);
  EXPECT_FALSE(first->answered());
  Settle();
  ASSERT_TRUE(first->ok() && second->ok());
  ASSERT_EQ(first->response.keys_size(), 2);
  EXPECT_EQ(first->response.keys(0).chunk_count() + first->response.keys(1).chunk_count(), 5u);
  EXPECT_EQ(first->response.keys(0).reductions_min(), 3u);
  EXPECT_EQ(
      std::max(first->response.keys(0).reductions_max(), first->response.keys(1).reductions_max()),
      4u);
  EXPECT_EQ(second->response.SerializeAsString(), first->response.SerializeAsString());
}

TEST_F(SnapshotTest, VersionsThatDoNotComeAreADeadlineAndLateOnesHarmless) {
  for (const auto& core : keeping) core->silent_on_versions = true;
  v1::GetVersionsRequest request;
  request.set_session_id(sessions[0]);
  const auto asked = GetVersions(request);
  Advance(options.report_timeout);
  EXPECT_EQ(asked->code(), absl::StatusCode::kDeadlineExceeded);
  for (const auto& core : cores) {
    const Command command = core->Executed(Command::Kind::kReportVersions)[0];
    core->Emit({.kind = Event::Kind::kVersionsReported,
                .shard = command.shard,
                .versions = command.versions});
  }
  Settle();
}

TEST_F(SnapshotTest, AJobThatIsIdleIsSavedAsItIs) {
  Train(5);
  const std::string id = BeginAt(5);
  EXPECT_GT(control().memory_bytes(), used_before);
  EXPECT_EQ(snapshot.bytes(), 2 * 900 * sizeof(float));
  EXPECT_EQ(snapshot.keys(0).spec().name(), "a");
  const auto sink = Read(id);
  ReadToEnd(id, *sink);
  ExpectCheckpointAt(*sink, 5);
  Settle();
  EXPECT_EQ(control().memory_bytes(), used_before);
}

TEST_F(SnapshotTest, TrainingGoesOnAndTheBoundaryIsSeen) {
  Train(5);
  const std::string id = BeginAt(7);
  const auto sink = Read(id);
  EXPECT_TRUE(sink->parts.empty());
  Train(4);
  ReadToEnd(id, *sink);
  ExpectCheckpointAt(*sink, 7);
}

TEST_F(SnapshotTest, ABoundaryThatIsOverIsAborted) {
  Train(5);
  const auto begun = BeginSnapshot(TargetsAt(4));
  Settle();
  EXPECT_EQ(begun->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(control().memory_bytes(), used_before);
  // Expect: the next snapshot may begin at once.
  Train();
  BeginAt(6);
}

TEST_F(SnapshotTest, OneAtATimeAndOneReader) {
  Train();
  const std::string id = BeginAt(1);
  const auto other = BeginSnapshot(TargetsAt(1));
  EXPECT_EQ(other->code(), absl::StatusCode::kFailedPrecondition);
  const auto reader = Read(id);
  absl::Status second;
  const auto intruder = Read(id, &second);
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  // Receive: the intruder's cancellation does not end the reader's snapshot.
  control().snapshots().CancelSnapshot(id, intruder.get());
  ReadToEnd(id, *reader);
  ExpectCheckpointAt(*reader, 1);
  Read(id, &second);
  EXPECT_EQ(second.code(), absl::StatusCode::kNotFound);
}

TEST_F(SnapshotTest, AReaderThatGoesAwayGivesItBack) {
  Train();
  const std::string id = BeginAt(1);
  const auto sink = Read(id);
  control().snapshots().CancelSnapshot(id, sink.get());
  // Expect: not before the core loops have released it.
  EXPECT_GT(control().memory_bytes(), used_before);
  EXPECT_EQ(BeginSnapshot(TargetsAt(1))->code(), absl::StatusCode::kUnavailable);
  Settle();
  EXPECT_EQ(control().memory_bytes(), used_before);
  EXPECT_FALSE(sink->end.has_value());
}

TEST_F(SnapshotTest, ASaverThatBeginsAgainReplacesItsOwnSnapshot) {
  Train();
  v1::BeginSnapshotRequest request = TargetsAt(1);
  request.set_saver("0123456789abcdef");
  const auto lost = BeginSnapshot(request);  // the answer is lost on the way
  Settle();
  ASSERT_EQ(lost->code(), absl::StatusCode::kOk);
  v1::BeginSnapshotRequest other = TargetsAt(1);
  other.set_saver("another saver");
  EXPECT_EQ(BeginSnapshot(other)->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(BeginSnapshot(TargetsAt(1))->code(), absl::StatusCode::kFailedPrecondition);
  // Expect: UNAVAILABLE until the core loops have released the first one.
  EXPECT_EQ(BeginSnapshot(request)->code(), absl::StatusCode::kUnavailable);
  Settle();
  const auto again = BeginSnapshot(request);
  Settle();
  ASSERT_EQ(again->code(), absl::StatusCode::kOk);
  const std::string id = again->response.snapshot_id();
  EXPECT_NE(id, lost->response.snapshot_id());
  const auto sink = Read(id);
  ReadToEnd(id, *sink);
  ExpectCheckpointAt(*sink, 1);
  EXPECT_EQ(control().memory_bytes(), used_before);
}

TEST_F(SnapshotTest, NobodyReadsAndItIsGivenBack) {
  Train();
  BeginAt(1);
  for (int i = 0; i < 80; ++i) {
    for (const std::string& session : sessions) Heartbeat(session);
    Advance(kSecond / 2);
  }
  EXPECT_EQ(control().memory_bytes(), used_before);
  EXPECT_EQ(Counter("phub_snapshots_abandoned_total"), 1u);
}

TEST_F(SnapshotTest, TheJobEndsInTheMiddle) {
  Train();
  const std::string id = BeginAt(2);
  const auto sink = Read(id);
  v1::EvictJobRequest evict;
  evict.set_job("digits");
  EvictJob(evict);
  ASSERT_TRUE(sink->end.has_value());
  EXPECT_EQ(sink->end->code(), absl::StatusCode::kAborted);
  // Receive: the reader's late progress reports.
  control().snapshots().SnapshotPartSent(id, sink.get());
  control().snapshots().CancelSnapshot(id, sink.get());
  Advance(options.teardown_delay);
  EXPECT_EQ(control().memory_bytes(), 0u);
}

TEST_F(SnapshotTest, AStuckCoreLoopIsADeadline) {
  Train();
  cores[1]->stopped = true;
  const auto begun = BeginSnapshot(TargetsAt(1));
  for (int i = 0; i < 3; ++i) {
    for (const std::string& session : sessions) Heartbeat(session);
    Advance(options.report_timeout / 2);
  }
  EXPECT_FALSE(begun->answered());  // its memory is not freed yet
  cores[1]->stopped = false;
  Settle();
  EXPECT_EQ(begun->code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(control().memory_bytes(), used_before);
}

TEST_F(SnapshotTest, TargetsMustBeOfTheKeysThatAreThere) {
  v1::BeginSnapshotRequest request = TargetsAt(0);
  request.mutable_targets(1)->set_key_index(0);
  EXPECT_EQ(BeginSnapshot(request)->code(), absl::StatusCode::kInvalidArgument);
  request.mutable_targets(1)->set_key_index(7);
  EXPECT_EQ(BeginSnapshot(request)->code(), absl::StatusCode::kInvalidArgument);
  request.mutable_targets()->RemoveLast();
  EXPECT_EQ(BeginSnapshot(request)->code(), absl::StatusCode::kAborted);
  request = TargetsAt(0);
  request.set_incarnation(1);
  EXPECT_THAT(BeginSnapshot(request)->message(), HasSubstr("was started again"));
  // Expect: not while keys are on their way to the core loops.
  cores[0]->stopped = true;
  AddKeys(Batch(sessions[0], 1, {Key("c", 8)}));
  request = TargetsAt(0);
  request.add_targets()->set_key_index(2);
  EXPECT_EQ(BeginSnapshot(request)->code(), absl::StatusCode::kAborted);
}

}  // namespace
}  // namespace phub::server
