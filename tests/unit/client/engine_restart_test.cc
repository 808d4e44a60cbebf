// Jobs that may be restarted: pushes that wait for the previous iteration, keys that resume, and
// rounds that load a checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "client/engine.h"
#include "tests/unit/client/engine_fixture.h"

namespace phub::client {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class EngineRestartTest : public EngineTest {
 protected:
  void PushAssign(TestKey& key) {
    Command command = PushCommand(key);
    command.operation = wire::RoundOperation::kAssign;
    Submit(command);
  }
  static Command ResumeCommand(TestKey& key, std::uint64_t version, std::uint64_t reductions) {
    return {.kind = Command::Kind::kResume,
            .key = key.index,
            .ticket = ++key.ticket,
            .version = Iteration{version},
            .reductions = reductions,
            .hyper_version = HyperVersion{4},
            .parameters = std::as_writable_bytes(std::span(key.parameters)).data(),
            .hyper_parameters = {.learning_rate = 0.25}};
  }
};

TEST_F(EngineRestartTest, PushOfTheNextIterationWaitsForEveryKeysLastReply) {
  Start(1, 8, /*restart=*/true);
  TestKey& early = AddKey({0});
  TestKey& late = AddKey({0, 0});
  Push(early);
  Push(late);
  ASSERT_THAT(Chunks(RunAndTake()), ElementsAre(0, 1, 2));
  Reply(0, 0, 1, 1.0f);
  Reply(0, 1, 1, 1.0f);
  Run();
  EXPECT_EQ(early.rounds.complete_count, 1);
  EXPECT_EQ(engine_->job_iteration(), 0u);
  Push(early);
  EXPECT_THAT(RunAndTake(), IsEmpty());
  EXPECT_EQ(engine_->counters().pushes_held, 1u);
  Reply(0, 2, 1, 1.0f);
  const auto posted = RunAndTake();
  ASSERT_THAT(Chunks(posted), ElementsAre(0));
  EXPECT_EQ(posted[0].header.iteration, Iteration{2});
  EXPECT_EQ(engine_->job_iteration(), 1u);
}

TEST_F(EngineRestartTest, WithoutRestartNothingIsHeld) {
  Start(1, 8);
  TestKey& early = AddKey({0});
  AddKey({0});
  Push(early);
  Run();
  Reply(0, 0, 1, 1.0f);
  Run();
  transport_.ClearPosted();
  Push(early);
  EXPECT_THAT(Chunks(RunAndTake()), ElementsAre(0));
}

TEST_F(EngineRestartTest, HeldPushesGoOutByPriority) {
  Start(1, 1, /*restart=*/true);
  TestKey& last = AddKey({0});
  TestKey& low = AddKey({0});
  TestKey& high = AddKey({0}, 5);
  for (TestKey* key : {&low, &high}) {
    Push(*key);
    Run();
    Reply(0, key->index.value, 1, 1.0f);
    Run();
    Push(*key);
  }
  Push(last);
  transport_.ClearPosted();
  ASSERT_THAT(Chunks(RunAndTake()), ElementsAre(0));
  Reply(0, 0, 1, 1.0f);
  EXPECT_THAT(Chunks(RunAndTake()), ElementsAre(2));
  Reply(0, 2, 2, 1.0f);
  EXPECT_THAT(Chunks(RunAndTake()), ElementsAre(1));
}

TEST_F(EngineRestartTest, AssignmentsNeitherWaitNorCount) {
  Start(1, 8, /*restart=*/true);
  TestKey& a = AddKey({0});
  TestKey& b = AddKey({0});
  for (TestKey* key : {&a, &b}) {
    PushAssign(*key);
    Run();
    Reply(0, key->index.value, 1, 1.0f);
    Run();
  }
  EXPECT_EQ(engine_->job_iteration(), 0u);
  Push(a);
  Run();
  Reply(0, 0, 2, 1.0f);
  Run();
  transport_.ClearPosted();
  PushAssign(a);  // sent although key b has not completed iteration 1
  EXPECT_THAT(Chunks(RunAndTake()), ElementsAre(0));
}

TEST_F(EngineRestartTest, CancelOfAHeldPushWithdrawsIt) {
  Start(1, 8, /*restart=*/true);
  TestKey& early = AddKey({0});
  TestKey& late = AddKey({0});
  Push(early);
  Push(late);
  Run();
  Reply(0, 0, 1, 1.0f);
  Run();
  Push(early);
  Run();
  Submit(CancelCommand(early));
  Run();
  EXPECT_THAT(early.rounds.cancels, ElementsAre(std::pair{std::uint64_t{2}, true}));
  transport_.ClearPosted();
  Reply(0, 1, 1, 1.0f);
  EXPECT_THAT(RunAndTake(), IsEmpty());  // nothing is left to send
  Push(early);
  const auto posted = RunAndTake();
  ASSERT_THAT(posted, SizeIs(1));
  EXPECT_EQ(posted[0].header.iteration, Iteration{2});
}

TEST_F(EngineRestartTest, KeyAddedLaterStartsAtTheJobsIteration) {
  Start(1, 8, /*restart=*/true);
  TestKey& first = AddKey({0});
  Push(first);
  Run();
  Reply(0, 0, 1, 1.0f);
  Run();
  TestKey& added = AddKey({0}, 0, {}, /*first_iteration=*/1);
  Run();
  EXPECT_EQ(engine_->job_iteration(), 1u);
  transport_.ClearPosted();
  Push(first);
  Push(added);
  EXPECT_THAT(Chunks(RunAndTake()), ElementsAre(0, 1));  // both compute iteration 2 of the job
  Reply(0, 0, 2, 1.0f);
  Run();
  EXPECT_EQ(engine_->job_iteration(), 1u);
  Reply(0, 1, 1, 1.0f);
  Run();
  EXPECT_EQ(engine_->job_iteration(), 2u);
}

TEST_F(EngineRestartTest, ResumePullsTheVersionAndGoesOnFromThere) {
  Start(2, 1, /*restart=*/true);
  TestKey& key = AddKey({0, 1, 0}, 0, {.learning_rate = 1.0});
  Submit(ResumeCommand(key, 7, 5));
  auto posted = RunAndTake();
  ASSERT_THAT(posted, SizeIs(3));  // slots do not limit them, and no record precedes them
  for (const auto& one : posted) {
    EXPECT_EQ(one.header.kind, wire::MessageKind::kPull);
    EXPECT_EQ(one.header.iteration, Iteration{7});
    EXPECT_EQ(one.header.payload_bytes, 0u);
  }
  Reply(0, 0, 7, 2.0f);
  Reply(0, 1, 7, 2.0f);
  Run();
  EXPECT_EQ(key.rounds.complete_count, 0);
  Reply(1, 0, 7, 2.0f);
  Run();
  EXPECT_EQ(key.rounds.complete_count, 1);
  EXPECT_EQ(key.rounds.last_ticket, key.ticket);
  EXPECT_EQ(key.rounds.last_iteration, Iteration{7});
  EXPECT_THAT(key.parameters, Each(2.0f));
  EXPECT_EQ(engine_->job_iteration(), 5u);
  Push(key);
  posted = RunAndTake();
  ASSERT_EQ(posted[0].header.kind, wire::MessageKind::kHyperParameters);
  wire::HyperParameters values;
  ASSERT_TRUE(wire::DecodeHyperParameters(posted[0].bytes, values));
  EXPECT_EQ(values.learning_rate, 0.25);
  EXPECT_EQ(posted[1].header.hyper_version, HyperVersion{4});
  EXPECT_EQ(posted[1].header.iteration, Iteration{8});
}

TEST_F(EngineRestartTest, PullsAreBoundedPerLaneAndAskedAgainOnANewLane) {
  Start(1, 1, /*restart=*/true);
  transport_.SetPostLimit(5);
  TestKey& key = AddKey(std::vector<std::uint32_t>(kPullsPerLaneMax + 10, 0));
  Submit(ResumeCommand(key, 3, 3));
  EXPECT_THAT(RunAndTake(), SizeIs(kPullsPerLaneMax));
  Reply(0, 0, 3, 1.0f);
  Reply(0, 1, 3, 1.0f);
  EXPECT_THAT(RunAndTake(), SizeIs(2));
  transport_.Break(0, transport::TransportError::kReset);
  Run();
  Attach(0);
  auto posted = RunAndTake();
  ASSERT_THAT(posted, SizeIs(kPullsPerLaneMax));
  EXPECT_EQ(posted[0].header.chunk, ChunkIndex{2});
  for (std::uint32_t chunk = 2; chunk < kPullsPerLaneMax + 10; ++chunk) {
    Reply(1, chunk, 3, 1.0f);
    Run();
  }
  EXPECT_EQ(key.rounds.complete_count, 1);
  EXPECT_THAT(key.parameters, Each(1.0f));
}

TEST_F(EngineRestartTest, AnswerToAPullOfAnotherVersionFailsTheLane) {
  Start(1, 1, /*restart=*/true);
  TestKey& key = AddKey({0});
  Submit(ResumeCommand(key, 3, 3));
  Run();
  Reply(0, 0, 4, 1.0f);
  Run();
  ASSERT_THAT(lanes_.closed_lanes, SizeIs(1));
  EXPECT_EQ(lanes_.closed_lanes[0].fault, LaneFault::kIteration);
  EXPECT_EQ(key.rounds.complete_count, 0);
}

TEST_F(EngineRestartTest, LoadPushesNothingAndSetsTheIteration) {
  Start(1, 2, /*restart=*/true);
  TestKey& key = AddKey({0, 0});
  Command command = PushCommand(key);
  command.operation = wire::RoundOperation::kLoad;
  command.reductions = 40;
  command.first_iteration = 60;
  Submit(command);
  const auto posted = RunAndTake();
  ASSERT_THAT(posted, SizeIs(2));
  for (const auto& one : posted) {
    EXPECT_EQ(one.header.operation, wire::RoundOperation::kLoad);
    EXPECT_EQ(one.header.iteration, Iteration{1});
    EXPECT_EQ(one.header.payload_bytes, 0u);
  }
  Reply(0, 0, 1, 8.0f);
  Reply(0, 1, 1, 8.0f);
  Run();
  EXPECT_EQ(key.rounds.complete_count, 1);
  EXPECT_THAT(key.parameters, Each(8.0f));
  EXPECT_EQ(engine_->job_iteration(), 100u);
  Push(key);
  EXPECT_EQ(RunAndTake().at(0).header.iteration, Iteration{2});
}

}  // namespace
}  // namespace phub::client
