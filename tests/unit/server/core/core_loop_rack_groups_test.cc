// The core loop of a rack in which some ranks have a group, in a job that spans racks: the group's
// rounds stay in the rack, and later chunks of the job have other numbers than in other racks.
#include "server/core/key_removal.h"
#include "tests/unit/server/core/core_loop_racks_fixture.h"

namespace phub::server {
namespace {

// Chunks 0 to 2 are those of the fixture's key, chunks 3 and 4 the group's, chunks 5 to 7 those of
// a later key, which all racks know as chunks 3 to 5 of their lanes.
class RackGroup : public CoreLoopRacks {
 protected:
  static constexpr std::uint32_t kGroupChunk = 3;
  static constexpr std::uint32_t kLater = 5;
  static constexpr std::uint32_t kShift = 2;

  void AddGroup(std::initializer_list<Rank> ranks) {
    members_ = std::make_unique<Members>(std::vector<Rank>(ranks));
    group_.key = KeyIndex{kGroupKeysFirst};
    group_.collective = true;
    group_.reduction = Reduction::kMean;
    group_.members = members_.get();
    group_.first_chunk = kGroupChunk;
    Give(group_, group_parameters_, kShift);
    group_batch_ = MakeKeyBatch(config_, {&group_, 1});
    Order({.kind = Command::Kind::kAddKeys, .shard = shard_.get(), .batch = group_batch_.get()});
  }
  void AddLaterKey() {
    later_.key = KeyIndex{1};
    later_.reduction = Reduction::kSum;
    later_.optimizer = Optimizer::kNone;
    Give(later_, later_parameters_, 3);
    later_batch_ = MakeKeyBatch(config_, {&later_, 1});
    exchange::TreeChooser chooser(exchange_->plan, CoreIndex{0});
    later_exchange_ = exchange::MakeExchangeBatch(*exchange_, {&later_, 1}, chooser);
    exchange::AddExchange(*exchange_, *later_exchange_, *later_batch_);
    Order({.kind = Command::Kind::kAddKeys, .shard = shard_.get(), .batch = later_batch_.get()});
  }
  static void Give(KeyShardSpec& key, std::vector<float>& parameters, std::uint32_t chunks) {
    for (std::uint32_t i = 0; i < chunks; ++i)
      key.chunks.push_back({kElements, i * std::uint64_t{kElements}});
    parameters.assign(std::size_t{chunks} * kElements, 0.0f);
    auto* const bytes = reinterpret_cast<std::byte*>(parameters.data());
    key.parameters = {bytes, bytes};
  }

  std::unique_ptr<Members> members_;
  KeyShardSpec group_, later_;
  std::vector<float> group_parameters_, later_parameters_;
  std::unique_ptr<KeyBatch> group_batch_, later_batch_;
  std::unique_ptr<exchange::ExchangeBatch> later_exchange_;
};

TEST_F(RackGroup, ItsRoundsStayInTheRack) {
  StartRack(1);
  AddGroup({Rank{0}, Rank{1}});
  Push(1, kGroupChunk + 1, 1, 0, 4);
  Push(0, kGroupChunk + 1, 1, 0, 2);
  const auto posted = transport_.TakePosted();
  ASSERT_EQ(posted.size(), 2u);
  for (const auto& reply : posted) {
    EXPECT_EQ(reply.header.kind, wire::MessageKind::kParameters);
    EXPECT_EQ(reply.payload, Filled(3));  // the mean of the members, not of the job's ranks
  }
  EXPECT_EQ(exchange_->chunk_count, 3u);
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

TEST_F(RackGroup, OtherRacksKnowLaterChunksByNumbersWithoutTheGroups) {
  StartRack(1);
  AddGroup({Rank{0}});
  AddLaterKey();
  std::uint32_t number = 3;
  while (HomeOf(number) != 2) ++number;
  const std::uint32_t chunk = number + kShift;
  Push(0, chunk, 1, 0, 3);
  Push(1, chunk, 1, 0, 4);
  const auto sums = Posted(wire::MessageKind::kGradient);
  ASSERT_EQ(sums.size(), 1u);
  EXPECT_EQ(sums[0].header.chunk, ChunkIndex{number});
  EXPECT_EQ(sums[0].header.slot, SlotIndex{2 * number});
  EXPECT_TRUE(IsOpen(2, 2 * number + 1));
  transport_.Deliver(peers_[2], FromPeer(number, 1, 1), Filled(-5));
  loop_.RunOnce();
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 2u);
  for (const auto& reply : replies) {
    EXPECT_EQ(reply.header.chunk, ChunkIndex{chunk});
    EXPECT_EQ(reply.payload, Filled(-5));
  }
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

TEST_F(RackGroup, AnotherRackCannotSendToItsChunks) {
  StartRack(0);
  AddGroup({Rank{0}, Rank{1}});
  LearnHash();
  wire::MessageHeader header = FromPeer(ChunkWithHome(0), 1, 0);
  header.chunk = ChunkIndex{kGroupChunk};
  transport_.Deliver(peers_[1], header, Filled(9));
  const Event event = Next(Event::Kind::kFault);
  EXPECT_EQ(event.code, FaultCode::kChunkRange);
  EXPECT_EQ(event.source, RackIndex{1});
}

// Rank 1 of this rack is rank 3 of the job.
TEST_F(RackGroup, ARootIsNumberedInTheJob) {
  StartRack(1);
  AddGroup({Rank{1}});
  wire::MessageHeader header = Gradient(kGroupChunk, 1, 0);
  header.operation = wire::RoundOperation::kAssign;
  header.root = Rank{3};
  transport_.Deliver(lanes_[1], header, Filled(8));
  loop_.RunOnce();
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].payload, Filled(8));
  header.iteration = Iteration{2};
  header.root = Rank{1};  // a rank of another rack
  header.slot = kNoSlot;
  transport_.Deliver(lanes_[1], header, {});
  EXPECT_EQ(FaultOf(), FaultCode::kRoundMismatch);
}

TEST_F(RackGroup, IsRemovedWhileRacksExchange) {
  StartRack(1);
  AddGroup({Rank{0}, Rank{1}});
  AddLaterKey();
  Push(0, kLater, 1, 0, 3);
  KeyRemoval removal{.group = members_.get(), .shared = {}};
  Order({.kind = Command::Kind::kRemoveKeys, .shard = shard_.get(), .removal = &removal});
  EXPECT_EQ(Next(Event::Kind::kKeysRemoved).removal, &removal);
  Push(1, kLater, 1, 0, 4);
  EXPECT_EQ(Posted(wire::MessageKind::kGradient).size() + Replies().size(), 1u);
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

}  // namespace
}  // namespace phub::server
