// The core loop in a job with policy wait that spans racks: its own ranks lose lanes at every point
// of an exchange, and processes restart.
#include "tests/unit/server/core/core_loop_racks_fixture.h"

namespace phub::server {
namespace {

using wire::MessageKind;

class CoreLoopRacksWait : public CoreLoopRacks {
 protected:
  CoreLoopRacksWait() { config_.on_loss = LossPolicy::kWait; }

  void LoseAndReopen(std::uint32_t rank) {
    transport_.Break(lanes_[rank], TransportError::kReset);
    loop_.RunOnce();
    Attach(rank);
  }
  // The number of partial sums or parameters sent to this connection.
  std::size_t PostedTo(ConnectionId connection, MessageKind kind) {
    std::size_t count = 0;
    for (const auto& posted : taken_) {
      count += posted.connection == connection && posted.header.kind == kind ? 1 : 0;
    }
    return count;
  }
  void Take() {
    for (auto& posted : transport_.TakePosted()) taken_.push_back(posted);
  }
  std::vector<ScriptedTransport::Posted> Pull(std::uint32_t rank, std::uint32_t chunk,
                                              std::uint64_t version) {
    wire::MessageHeader header = Gradient(chunk, version, 0);
    header.kind = MessageKind::kPull;
    transport_.TakePosted();
    transport_.Deliver(lanes_[rank], header);
    loop_.RunOnce();
    return Replies();
  }

  std::vector<ScriptedTransport::Posted> taken_;
};

TEST_F(CoreLoopRacksWait, AwayFromHomeASumGoesUpOnceHoweverOftenItsParts) {
  StartRack(1);
  const std::uint32_t chunk = ChunkWithHome(2);
  // Receive: a gradient that waits in its slot, and is lost with its lane.
  Push(0, chunk, 1, 0, 3);
  LoseAndReopen(0);
  EXPECT_EQ(Count(CoreCounter::staged_discarded), 1u);
  Push(0, chunk, 1, 0, 3);
  Push(1, chunk, 1, 0, 4);
  Take();
  ASSERT_EQ(PostedTo(peers_[2], MessageKind::kGradient), 1u);
  // Expect: for a chunk whose sum is in flight, a credit at once, and the reply when the round
  // completes.
  LoseAndReopen(0);
  Push(0, chunk, 1, 0, 3);
  Take();
  EXPECT_EQ(PostedTo(lanes_[0], MessageKind::kCredit), 1u);
  EXPECT_EQ(PostedTo(peers_[2], MessageKind::kGradient), 1u);
  EXPECT_EQ(Count(CoreCounter::duplicates_staged), 1u);
  LoseAndReopen(1);  // it does not push again before the result is here
  transport_.Deliver(peers_[2], FromPeer(chunk, 1, 1), Filled(-5));
  loop_.RunOnce();
  Take();
  EXPECT_EQ(PostedTo(lanes_[0], MessageKind::kParameters), 1u);
  EXPECT_EQ(PostedTo(lanes_[1], MessageKind::kParameters), 0u);
  // Expect: for an applied round, the result.
  Push(1, chunk, 1, 0, 4);
  const auto again = Replies();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].payload, Filled(-5));
  // Expect: the next round is like any other.
  Push(0, chunk, 2, 0, 1);
  Push(1, chunk, 2, 0, 1);
  const auto next = Posted(MessageKind::kGradient);
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0].payload, Filled(2));
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

TEST_F(CoreLoopRacksWait, AtHomeTheTotalHasEveryPartOnceAndEveryRackTheResultOnce) {
  StartRack(0);
  LearnHash();
  const std::uint32_t chunk = ChunkWithHome(0);
  Push(0, chunk, 1, 1, 3);
  Push(1, chunk, 1, 1, 4);
  LoseAndReopen(1);
  Push(1, chunk, 1, 1, 4);
  transport_.Deliver(peers_[2], FromPeer(chunk, 1, 0), Filled(20));
  loop_.RunOnce();
  LoseAndReopen(0);
  transport_.TakePosted();
  transport_.Deliver(peers_[1], FromPeer(chunk, 1, 0), Filled(9));
  loop_.RunOnce();
  Take();
  for (const auto& posted : taken_) {
    if (posted.header.kind == MessageKind::kParameters) {
      EXPECT_EQ(posted.payload, Filled(-0.5f * 36 / 6));
    }
  }
  EXPECT_EQ(PostedTo(peers_[1], MessageKind::kParameters), 1u);
  EXPECT_EQ(PostedTo(peers_[2], MessageKind::kParameters), 1u);
  EXPECT_EQ(PostedTo(lanes_[1], MessageKind::kParameters), 1u);
  EXPECT_EQ(PostedTo(lanes_[0], MessageKind::kParameters), 0u);
  Push(0, chunk, 1, 1, 3);
  EXPECT_EQ(Replies().size(), 1u);
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

// Expect: a lost lane to another rack is a fault, whatever the policy.
TEST_F(CoreLoopRacksWait, ALaneToAnotherRackIsNotAwaited) {
  StartRack(0);
  transport_.Break(peers_[1], TransportError::kReset);
  EXPECT_EQ(FaultOf(), FaultCode::kLaneLost);
}

class CoreLoopRacksRestart : public CoreLoopRacksWait {
 protected:
  CoreLoopRacksRestart() { config_.restart = true; }
};

TEST_F(CoreLoopRacksRestart, ResultsLandInTheOtherVersionAndBothArePulled) {
  StartRack(1);
  const std::uint32_t chunk = ChunkWithHome(2);
  const std::size_t offset = shard_->chunks()[chunk]->element_offset * sizeof(float);
  for (const std::uint64_t iteration : {1u, 2u, 3u}) {
    Push(0, chunk, iteration, 0, 3);
    Push(1, chunk, iteration, 0, 4);
    EXPECT_EQ(exchange_->peers[2].landing[2 * chunk + 1].data,
              parameters_[iteration % 2].data() + offset);
    if (iteration > 1) {
      // Expect: while a result is in flight, the two versions before it are complete.
      const auto current = Pull(0, chunk, iteration - 1);
      ASSERT_EQ(current.size(), 1u);
      EXPECT_EQ(current[0].payload, Filled(-10.0f * static_cast<float>(iteration - 1)));
    }
    transport_.Deliver(peers_[2], FromPeer(chunk, iteration, 1),
                       Filled(-10.0f * static_cast<float>(iteration)));
    loop_.RunOnce();
    const auto previous = Pull(0, chunk, iteration - 1);
    if (iteration == 1) continue;
    ASSERT_EQ(previous.size(), 1u);
    EXPECT_EQ(previous[0].header.iteration, Iteration{iteration - 1});
    EXPECT_EQ(previous[0].payload, Filled(-10.0f * static_cast<float>(iteration - 1)));
  }
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

// The sum that includes the previous process's push is at its home, or on its way.
TEST_F(CoreLoopRacksRestart, ANewProcessStartsFromTheVersionBeforeAndPushesTheRoundAgain) {
  StartRack(1);
  const std::uint32_t chunk = ChunkWithHome(2);
  for (const std::uint64_t iteration : {1u, 2u}) {
    Push(0, chunk, iteration, 0, 3);
    Push(1, chunk, iteration, 0, 4);
    if (iteration == 2) break;
    transport_.Deliver(peers_[2], FromPeer(chunk, 1, 1), Filled(-1));
    loop_.RunOnce();
  }
  LoseAndReopen(0);
  EXPECT_EQ(Pull(0, chunk, 1).at(0).payload, Filled(-1));
  transport_.Deliver(peers_[2], FromPeer(chunk, 2, 1), Filled(-2));
  loop_.RunOnce();
  // Expect: the new process receives no reply for a round that it has not pushed.
  for (const auto& reply : Replies()) EXPECT_EQ(reply.connection, lanes_[1]);
  Push(0, chunk, 2, 0, 3);
  const auto again = Replies();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].header.iteration, Iteration{2});
  EXPECT_EQ(again[0].payload, Filled(-2));
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

}  // namespace
}  // namespace phub::server
