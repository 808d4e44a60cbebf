// The core loop of a rack in which some ranks have a group, in a job that spans racks: the group's
// rounds stay in the rack, and later chunks of the job have other numbers than in other racks.
#include "common/plan/subset.h"
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
    std::vector<Rank> in_job;
    for (const Rank rank : ranks) in_job.push_back(Rank{rank.value + config_.rank_base});
    MakeGroup(std::vector<Rank>(ranks), in_job, kShift);
    Order({.kind = Command::Kind::kAddKeys, .shard = shard_.get(), .batch = group_batch_.get()});
  }
  // Makes the group's only key, without adding it. The operation is mean.
  void MakeGroup(const std::vector<Rank>& ranks, const std::vector<Rank>& in_job,
                 std::uint32_t chunks) {
    members_ = std::make_unique<Members>(ranks, in_job);
    group_.key = KeyIndex{kGroupKeysFirst};
    group_.collective = true;
    group_.reduction = Reduction::kMean;
    group_.members = members_.get();
    group_.first_chunk = kGroupChunk;
    Give(group_, group_parameters_, chunks);
    group_batch_ = MakeKeyBatch(config_, {&group_, 1});
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

// Racks 1 and 2 have members: ranks 2 and 3 of the job here, which is rack 1, and rank 4 there.
class WideGroup : public RackGroup {
 protected:
  static constexpr std::uint32_t kFirstNumber = exchange::kGroupNumbersFirst + 5;
  static constexpr std::uint32_t kGroupChunks = 4;

  void AddWideGroup() {
    const auto topology = plan::Generate("switch:3");
    const auto members = topology->members();
    const auto forest = plan::PlanForMembers(*topology, members.subspan(1), [](const auto& part) {
      return plan::MakePlan(*plan::FindPlanner("sharded-star"), part, {});
    });
    ASSERT_TRUE(forest.ok()) << forest.status();
    auto made = exchange::MakeRackPlan(*topology, *forest, RackIndex{1});
    ASSERT_TRUE(made.ok());
    plan_ = std::make_shared<const exchange::RackPlan>(*std::move(made));
    MakeGroup(std::vector<Rank>{Rank{0}, Rank{1}}, std::vector<Rank>{Rank{2}, Rank{3}, Rank{4}},
              kGroupChunks);
    const exchange::GroupPart part{.plan = plan_, .rank_count = 3, .first_number = kFirstNumber};
    exchange::TreeChooser chooser(*plan_, CoreIndex{0});
    group_exchange_ = exchange::MakeExchangeBatch(*exchange_, {&group_, 1}, chooser, &part);
    exchange::AddExchange(*exchange_, *group_exchange_, *group_batch_);
    Order({.kind = Command::Kind::kAddKeys, .shard = shard_.get(), .batch = group_batch_.get()});
  }
  // Which of the group's chunks has its home in that rack.
  std::uint32_t WithHome(std::uint32_t rack) const {
    const auto& chunks = group_exchange_->chunks;
    for (std::uint32_t i = 0; i < chunks.size(); ++i)
      if (chunks[i].tree->home.value == rack) return i;
    ADD_FAILURE() << "no chunk has its home in rack " << rack;
    return 0;
  }
  // Pushes a chunk whose home is rack 2, and learns the hash of its terms from what goes there.
  ScriptedTransport::Posted PushAway(float first, float second) {
    const std::uint32_t chunk = kGroupChunk + WithHome(2);
    Push(1, chunk, 1, 0, second);
    Push(0, chunk, 1, 0, first);
    const auto sums = Posted(wire::MessageKind::kGradient);
    EXPECT_EQ(sums.size(), 1u);
    if (sums.empty()) return {};
    hash_ = sums[0].header.reply_address.value;
    return sums[0];
  }

  std::shared_ptr<const exchange::RackPlan> plan_;
  std::unique_ptr<exchange::ExchangeBatch> group_exchange_;
};

TEST_F(WideGroup, ItsSumsGoToItsRacksUnderNumbersOfTheirOwn) {
  StartRack(1);
  AddWideGroup();
  EXPECT_EQ(plan_->neighbors, exchange::RackBit(RackIndex{2}));
  const auto sum = PushAway(3, 4);
  const std::uint32_t number = kFirstNumber + WithHome(2);
  EXPECT_EQ(sum.connection, peers_[2]);
  ASSERT_EQ(sum.header.chunk, ChunkIndex{number});
  EXPECT_EQ(sum.header.slot, SlotIndex{2 * number});
  EXPECT_EQ(sum.payload, Filled(7));
  ASSERT_TRUE(IsOpen(2, 2 * number + 1));
  transport_.Deliver(peers_[2], FromPeer(number, 1, 1), Filled(-5));
  loop_.RunOnce();
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[0].payload, Filled(-5));
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

TEST_F(WideGroup, ItsMeanIsThatOfAllMembers) {
  StartRack(1);
  AddWideGroup();
  (void)PushAway(0, 0);
  const std::uint32_t home = WithHome(1);
  Push(0, kGroupChunk + home, 1, 1, 3);
  Push(1, kGroupChunk + home, 1, 1, 4);
  EXPECT_TRUE(Replies().empty());
  ASSERT_NE(exchange_->Find(kFirstNumber + home), nullptr);
  transport_.Deliver(peers_[2], FromPeer(kFirstNumber + home, 1, 0), Filled(5));
  loop_.RunOnce();
  const auto results = Replies();  // to two ranks and one rack, and none to rack 0
  ASSERT_EQ(results.size(), 3u);
  for (const auto& result : results) {
    EXPECT_EQ(result.payload, Filled(4));
    EXPECT_FALSE(result.connection == peers_[0]);
  }
  // The exchange of the job's keys is measured, and this is not one.
  EXPECT_EQ(exchange_->metrics.exchange_bytes.Get(), 3u * kElements * sizeof(float));
}

TEST_F(WideGroup, ARootMayBeAMemberInAnotherRack) {
  StartRack(1);
  AddWideGroup();
  wire::MessageHeader header = Gradient(kGroupChunk + WithHome(2), 1, kNoSlot.value);
  header.operation = wire::RoundOperation::kAssign;
  header.root = Rank{4};
  transport_.Deliver(lanes_[0], header, {});
  loop_.RunOnce();
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
  header.chunk = ChunkIndex{kGroupChunk + WithHome(1)};
  header.root = Rank{5};  // rank 5 is in that rack, and not a member
  transport_.Deliver(lanes_[0], header, {});
  EXPECT_EQ(FaultOf(), FaultCode::kRoundMismatch);
}

TEST_F(WideGroup, AValueOfAMemberInAnotherRackReachesTheMembersHere) {
  StartRack(1);
  AddWideGroup();
  (void)PushAway(0, 0);
  const std::uint32_t home = WithHome(1);
  ASSERT_NE(exchange_->Find(kFirstNumber + home), nullptr);
  wire::MessageHeader header = Gradient(kGroupChunk + home, 1, kNoSlot.value);
  header.operation = wire::RoundOperation::kAssign;
  header.root = Rank{4};
  for (const std::uint32_t rank : {0u, 1u}) transport_.Deliver(lanes_[rank], header, {});
  loop_.RunOnce();
  EXPECT_TRUE(Replies().empty());
  header = FromPeer(kFirstNumber + home, 1, 0);
  header.operation = wire::RoundOperation::kAssign;
  header.root = Rank{4};
  transport_.Deliver(peers_[2], header, Filled(9));
  loop_.RunOnce();
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 3u);  // to two ranks and rack 2
  for (const auto& reply : replies) EXPECT_EQ(reply.payload, Filled(9));
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

// The rack has the numbers 0 to 2 and the group's four.
TEST_F(WideGroup, NumbersThatTheRackDoesNotHaveBelongToNoChunk) {
  StartRack(1);
  AddWideGroup();
  for (const std::uint32_t number : {0u, 2u, kFirstNumber, kFirstNumber + kGroupChunks - 1}) {
    ASSERT_NE(exchange_->Find(number), nullptr) << number;
    EXPECT_EQ(exchange_->Find(number)->number, number);
  }
  for (const std::uint32_t number :
       {3u, exchange::kGroupNumbersFirst - 1, exchange::kGroupNumbersFirst, kFirstNumber - 1,
        kFirstNumber + kGroupChunks, UINT32_MAX})
    EXPECT_EQ(exchange_->Find(number), nullptr) << number;
}

TEST_F(WideGroup, AMessageForANumberThatTheRackDoesNotHaveIsRefused) {
  StartRack(1);
  AddWideGroup();
  (void)PushAway(0, 0);
  wire::MessageHeader header = FromPeer(kFirstNumber + WithHome(1), 1, 0);
  header.chunk = ChunkIndex{kFirstNumber - 1};
  transport_.Deliver(peers_[2], header, Filled(1));
  const Event event = Next(Event::Kind::kFault);
  EXPECT_EQ(event.code, FaultCode::kChunkRange);
  EXPECT_EQ(event.source, RackIndex{2});
}

// Expect: no later message finds the chunks, and their numbers are free.
TEST_F(WideGroup, IsUnlinkedOnceItsMessagesAreSent) {
  StartRack(1);
  AddWideGroup();
  transport_.set_report_sent(false);
  (void)PushAway(3, 4);
  const std::uint32_t number = kFirstNumber + WithHome(2);
  transport_.Deliver(peers_[2], FromPeer(number, 1, 1), Filled(-5));
  loop_.RunOnce();
  EXPECT_EQ(exchange_->peers[2].posted, 1u);
  KeyRemoval removal{.group = members_.get(), .shared = {}};
  Order({.kind = Command::Kind::kRemoveKeys, .shard = shard_.get(), .removal = &removal});
  for (std::uint32_t i = 0; i < kGroupChunks; ++i) {
    EXPECT_EQ(exchange_->Find(kFirstNumber + i), nullptr);
    for (const std::uint32_t slot : {0u, 1u})
      EXPECT_FALSE(IsOpen(2, 2 * (kFirstNumber + i) + slot)) << i;
  }
  EXPECT_NE(shard_->removal, nullptr) << "it waits for replies and the partial sum";
  transport_.set_report_sent(true);
  EXPECT_EQ(Next(Event::Kind::kKeysRemoved).removal, &removal);
  EXPECT_EQ(exchange_->peers[2].posted, 0u);
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

// This rack has sent its sum up and has no result yet.
TEST_F(WideGroup, IsNotUnlinkedWhileARoundIsInFlight) {
  StartRack(1);
  AddWideGroup();
  (void)PushAway(3, 4);
  KeyRemoval removal{.group = members_.get(), .shared = {}};
  Order({.kind = Command::Kind::kRemoveKeys, .shard = shard_.get(), .removal = &removal});
  const Event event = Next(Event::Kind::kFault);
  EXPECT_EQ(event.code, FaultCode::kKeyInUse);
  EXPECT_NE(exchange_->Find(kFirstNumber), nullptr);
}

// Rack 2 has a part of a round, so its own core loop refuses the removal.
TEST_F(WideGroup, APartialSumThatArrivedIsTheOtherRacksFault) {
  StartRack(1);
  AddWideGroup();
  (void)PushAway(0, 0);
  const std::uint32_t away = kFirstNumber + WithHome(2);
  transport_.Deliver(peers_[2], FromPeer(away, 1, 1), Filled(-5));
  loop_.RunOnce();
  transport_.Deliver(peers_[2], FromPeer(kFirstNumber + WithHome(1), 1, 0), Filled(5));
  loop_.RunOnce();
  KeyRemoval removal{.group = members_.get(), .shared = {}};
  Order({.kind = Command::Kind::kRemoveKeys, .shard = shard_.get(), .removal = &removal});
  EXPECT_EQ(Next(Event::Kind::kKeysRemoved).removal, &removal);
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

}  // namespace
}  // namespace phub::server
