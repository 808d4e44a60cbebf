// Messages to other racks in a job whose keys have several priority classes.
#include <limits>

#include "server/core/exchange/peer_window.h"
#include "tests/unit/server/core/core_loop_racks_fixture.h"

namespace phub::server {
namespace {

// How many chunks of this size a lane has posted and not sent, of the highest class and of others.
constexpr std::uint32_t kLargeElements = 32 * 1024;
constexpr std::size_t kInWindow = 16;
constexpr std::size_t kYielding = 1;

// Rack 1 of three. The fixture's key is of the lowest class and has so many chunks that each other
// rack is the home of kDataChunks; a later key of a higher class has kTensorChunks of them.
class RackPriority : public CoreLoopRacks {
 protected:
  RackPriority() { chunk_elements_ = kLargeElements; }
  static constexpr std::uint32_t kDataChunks = 8;
  static constexpr std::uint32_t kTensorChunks = 40;

  void StartRacks() {
    slots_per_lane_ = 3 * kDataChunks + 3 * kTensorChunks;
    StartRack(1, "sharded-star", 3 * kDataChunks);
    for (const std::uint32_t rack : {0u, 2u}) data_[rack] = WithHome(rack, 0, 3 * kDataChunks);
  }
  void AddKeyOf(std::uint8_t level) {
    const std::uint32_t first = exchange_->chunk_count;
    tensor_key_.key = KeyIndex{1};
    tensor_key_.level = level;
    for (std::uint32_t i = 0; i < 3 * kTensorChunks; ++i)
      tensor_key_.chunks.push_back({chunk_elements_, std::uint64_t{i} * chunk_elements_});
    values_.assign(std::size_t{3} * kTensorChunks * chunk_elements_, 0.0f);
    auto* const bytes = reinterpret_cast<std::byte*>(values_.data());
    tensor_key_.parameters = {bytes, bytes};
    tensor_batch_ = MakeKeyBatch(config_, {&tensor_key_, 1});
    exchange::TreeChooser chooser(exchange_->plan, CoreIndex{0});
    tensor_exchange_ = exchange::MakeExchangeBatch(*exchange_, {&tensor_key_, 1}, chooser);
    exchange::AddExchange(*exchange_, *tensor_exchange_, *tensor_batch_);
    Order({.kind = Command::Kind::kAddKeys, .shard = shard_.get(), .batch = tensor_batch_.get()});
    for (const std::uint32_t rack : {0u, 2u})
      tensor_[rack] = WithHome(rack, first, exchange_->chunk_count);
  }
  std::vector<std::uint32_t> WithHome(std::uint32_t rack, std::uint32_t first,
                                      std::uint32_t end) const {
    std::vector<std::uint32_t> chunks;
    for (std::uint32_t chunk = first; chunk < end; ++chunk)
      if (HomeOf(chunk) == rack) chunks.push_back(chunk);
    return chunks;
  }
  // The rack's sum is complete, so its partial sum goes to the chunk's home.
  void Sum(std::uint32_t chunk) {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      transport_.Deliver(lanes_[rank], Gradient(chunk, 1, chunk),
                         std::vector<float>(chunk_elements_, 1.0f));
      loop_.RunOnce();
    }
  }
  void SumAll(const std::vector<std::uint32_t>& chunks, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) Sum(chunks[i]);
  }
  // The chunks of the partial sums that were posted since the last call, in that order.
  std::vector<std::uint32_t> Sent() {
    std::vector<std::uint32_t> chunks;
    for (const auto& sum : Posted(wire::MessageKind::kGradient))
      chunks.push_back(sum.header.chunk.value);
    return chunks;
  }
  static std::vector<std::uint32_t> Part(const std::vector<std::uint32_t>& chunks,
                                         std::size_t first, std::size_t end) {
    return {chunks.begin() + static_cast<std::ptrdiff_t>(first),
            chunks.begin() + static_cast<std::ptrdiff_t>(end)};
  }

  KeyShardSpec tensor_key_;
  std::vector<float> values_;
  std::unique_ptr<KeyBatch> tensor_batch_;
  std::unique_ptr<exchange::ExchangeBatch> tensor_exchange_;
  // [rack]: the chunks whose home it is.
  std::map<std::uint32_t, std::vector<std::uint32_t>> data_, tensor_;
};

using Chunks = std::vector<std::uint32_t>;

TEST_F(RackPriority, ASumOfAHigherClassPassesThoseThatWait) {
  StartRacks();
  AddKeyOf(2);
  transport_.set_report_sent(false);
  SumAll(data_[0], 6);
  EXPECT_EQ(Sent(), Part(data_[0], 0, kYielding));
  Sum(tensor_[0][0]);
  EXPECT_EQ(Sent(), Chunks{tensor_[0][0]});
  EXPECT_EQ(Count(CoreCounter::peer_overtakes), 1u);
  transport_.set_report_sent(true);
  for (int i = 0; i < 8; ++i) loop_.RunOnce();
  EXPECT_EQ(Sent(), Part(data_[0], kYielding, 6));
  EXPECT_EQ(exchange_->waiting_count, 0u);
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

TEST_F(RackPriority, LowerClassesWaitWhileAHigherOneIsUnsentOnAnyLane) {
  StartRacks();
  AddKeyOf(2);
  transport_.set_report_sent(false);
  Sum(tensor_[2][0]);
  EXPECT_EQ(Sent(), Chunks{tensor_[2][0]});
  Sum(data_[0][0]);
  EXPECT_EQ(Sent(), Chunks{});
  transport_.set_report_sent(true);
  loop_.RunOnce();
  EXPECT_EQ(Sent(), Part(data_[0], 0, 1));
}

// The next sum of the round may be ready at any moment, and would wait behind them.
TEST_F(RackPriority, LowerClassesWaitWhileRoundsOfAHigherOneMove) {
  StartRacks();
  AddKeyOf(2);
  SumAll(tensor_[2], 2);
  loop_.RunOnce();
  EXPECT_EQ(Sent(), Part(tensor_[2], 0, 2));
  EXPECT_EQ(exchange_->posted_at[2], 0u);
  Sum(data_[0][0]);
  EXPECT_EQ(Sent(), Chunks{});
  const TimeNs until = exchange_->activity.BusyUntil(2);
  EXPECT_EQ(loop_.NextTimer(), until);
  clock_.now = until - 1;
  loop_.RunOnce();
  EXPECT_EQ(Sent(), Chunks{});
  clock_.now = until;
  loop_.RunOnce();
  EXPECT_EQ(Sent(), Part(data_[0], 0, 1));
  EXPECT_EQ(loop_.NextTimer(), std::numeric_limits<TimeNs>::max());
}

TEST_F(RackPriority, LowerClassesDoNotWaitForASmallRound) {
  StartRacks();
  AddKeyOf(2);
  Sum(tensor_[2][0]);
  loop_.RunOnce();
  Sum(data_[0][0]);
  EXPECT_EQ(Sent(), (Chunks{tensor_[2][0], data_[0][0]}));
}

// A rack may receive more of a higher class than it sends.
TEST_F(RackPriority, OneOfTwentyIsOfTheLowestClassNextToWhatIsReceived) {
  StartRacks();
  AddKeyOf(2);
  const Chunks own = WithHome(1, 3 * kDataChunks, exchange_->chunk_count);
  const auto receive = [&](std::size_t chunk) {
    transport_.Deliver(peers_[0], FromPeer(own[chunk], 1, 0),
                       std::vector<float>(chunk_elements_, 1.0f));
    loop_.RunOnce();
  };
  receive(0);
  receive(1);
  SumAll(data_[0], 3);
  EXPECT_EQ(Sent(), Chunks{});
  for (std::size_t i = 2; i < 1 + kOvertakesMax; ++i) receive(i);
  EXPECT_EQ(Sent(), Chunks{});
  receive(1 + kOvertakesMax);
  EXPECT_EQ(Sent(), Part(data_[0], 0, 1));
  receive(2 + kOvertakesMax);
  EXPECT_EQ(Sent(), Chunks{});
}

TEST(ClassActivity, ABusyTimeFollowsTheGapsBetweenMessages) {
  exchange::ClassActivity activity;
  const auto busy_time = [&](TimeNs now) { return activity.BusyUntil(1) - now; };
  TimeNs now = kSecond;
  activity.BeginRound(1, 2 * exchange::ClassActivity::kBusyBytes, now);
  EXPECT_EQ(busy_time(now), exchange::ClassActivity::kBusyTimeMin);
  activity.NoteMoved(1, now += kMillisecond);
  EXPECT_EQ(busy_time(now), 8 * kMillisecond);
  activity.NoteMoved(1, now += kMicrosecond);
  EXPECT_EQ(busy_time(now), 7 * kMillisecond);
  activity.NoteMoved(1, now += kSecond);
  EXPECT_EQ(busy_time(now), exchange::ClassActivity::kBusyTimeMax);
  for (int i = 0; i < 100; ++i) activity.NoteMoved(1, now += kMicrosecond);
  EXPECT_EQ(busy_time(now), exchange::ClassActivity::kBusyTimeMin);
}

TEST(ClassActivity, AClassIsBusyFromALargeRoundToTheEndOfAllRounds) {
  exchange::ClassActivity activity;
  constexpr std::uint64_t kHalf = exchange::ClassActivity::kBusyBytes / 2;
  activity.BeginRound(1, kHalf, 1);
  EXPECT_FALSE(activity.IsBusy(1, 1));
  activity.BeginRound(1, kHalf, 1);
  EXPECT_TRUE(activity.IsBusy(1, 1));
  EXPECT_TRUE(activity.IsHigherBusy(0, 1));
  EXPECT_FALSE(activity.IsHigherBusy(1, 1));
  activity.EndRound(1, kHalf);
  EXPECT_TRUE(activity.IsBusy(1, 1));
  activity.EndRound(1, kHalf);
  activity.BeginRound(1, kHalf, 1);
  EXPECT_FALSE(activity.IsBusy(1, 1));
}

TEST_F(RackPriority, OneOfTwentyIsOfTheLowestClassOnWhicheverLanesTheyAre) {
  StartRacks();
  AddKeyOf(1);
  transport_.set_report_sent(false);
  Sum(tensor_[2][0]);
  SumAll(data_[0], 3);
  EXPECT_EQ(Sent(), Chunks{tensor_[2][0]});
  Chunks overtaking = Part(tensor_[2], 1, kInWindow);
  for (std::size_t i = 0; overtaking.size() < kOvertakesMax; ++i)
    overtaking.push_back(tensor_[0][i]);
  SumAll(overtaking, overtaking.size() - 1);
  EXPECT_EQ(Sent(), Part(overtaking, 0, overtaking.size() - 1));
  Sum(overtaking.back());
  EXPECT_EQ(Sent(), (Chunks{overtaking.back(), data_[0][0]}));
  Sum(tensor_[0][kOvertakesMax]);
  EXPECT_EQ(Sent(), Chunks{tensor_[0][kOvertakesMax]});
}

TEST_F(RackPriority, TheHighestClassHasAWindowToo) {
  StartRacks();
  AddKeyOf(1);
  transport_.set_report_sent(false);
  SumAll(tensor_[0], kInWindow + 2);
  EXPECT_EQ(Sent(), Part(tensor_[0], 0, kInWindow));
  transport_.set_report_sent(true);
  for (int i = 0; i < 4; ++i) loop_.RunOnce();
  EXPECT_EQ(Sent(), Part(tensor_[0], kInWindow, kInWindow + 2));
}

// Otherwise several lanes together would hold much that a sum of a higher class must wait for.
TEST_F(RackPriority, LanesShareAWindowOfLowerClasses) {
  EXPECT_EQ(exchange::YieldingBytesMax(7), 3 * exchange::kYieldingBytes);
  EXPECT_EQ(exchange::YieldingBytesMax(63), 15 * exchange::kYieldingBytes);
  exchange::ShardExchange lanes;
  lanes.has_classes = true;
  lanes.top_level = 2;
  lanes.lanes_open = 7;
  lanes.peers.resize(7);
  std::size_t posted = 0;
  for (exchange::PeerLane& lane : lanes.peers) {
    if (!exchange::HasWindow(lanes, lane, 0, 1)) continue;
    exchange::NotePosted(lanes, lane, 0, exchange::UnitsOf(128 * 1024));
    EXPECT_FALSE(exchange::HasWindow(lanes, lane, 0, 1));
    ++posted;
  }
  EXPECT_EQ(posted, 3u);
  EXPECT_TRUE(exchange::HasWindow(lanes, lanes.peers[6], 2, 1));
}

TEST_F(RackPriority, ACookieHasTheTimeTheSizeAndTheLevel) {
  const TimeNs ready = 12'345 * kSecond;
  const auto sent = exchange::SentOf(exchange::CookieOf(ready, 2049, 1), ready + 600 * kSecond);
  EXPECT_EQ(sent.waited, 600 * kSecond);
  EXPECT_EQ(sent.units, 2049u);
  EXPECT_EQ(sent.level, 1u);
}

TEST_F(RackPriority, WithOneClassMessagesArePostedUntilTheQueueIsFull) {
  StartRacks();
  AddKeyOf(0);
  transport_.set_report_sent(false);
  SumAll(tensor_[0], kInWindow + 2);
  EXPECT_EQ(Sent(), Part(tensor_[0], 0, kInWindow + 2));
  EXPECT_EQ(peer_endpoints_[0].unsent_max, 0u);
}

TEST_F(RackPriority, WhatWaitsForAFullQueueIsSentInTheOrderOfClasses) {
  StartRacks();
  AddKeyOf(2);
  transport_.set_report_sent(false);
  SumAll(data_[0], 3);
  EXPECT_EQ(Sent(), Part(data_[0], 0, kYielding));
  transport_.set_post_limit(0);
  SumAll(tensor_[2], 3);
  EXPECT_EQ(Sent(), Chunks{});
  EXPECT_EQ(exchange_->waiting_count, 5u);
  transport_.set_post_limit(1);
  loop_.RunOnce();
  EXPECT_EQ(Sent(), Chunks{tensor_[2][0]});
  transport_.set_post_limit(SIZE_MAX);
  transport_.set_report_sent(true);
  for (int i = 0; i < 5; ++i) {
    loop_.RunOnce();
    clock_.now += exchange::ClassActivity::kBusyTimeMax;
  }
  EXPECT_EQ(Sent(), (Chunks{tensor_[2][1], tensor_[2][2], data_[0][1], data_[0][2]}));
}

TEST_F(RackPriority, AMessageOfALaneThatIsLostIsForgotten) {
  StartRacks();
  AddKeyOf(2);
  transport_.set_report_sent(false);
  Sum(tensor_[2][0]);
  SumAll(data_[2], 2);
  transport_.Break(peers_[2], TransportError::kReset);
  loop_.RunOnce();
  EXPECT_EQ(exchange_->waiting_count, 0u);
  EXPECT_EQ(exchange_->posted_at[2], 0u);
  EXPECT_EQ(FaultOf(), FaultCode::kLaneLost);
}

TEST_F(RackPriority, TheKernelHoldsLittleOfAllLanesWhileThereAreTwoClasses) {
  StartRacks();
  EXPECT_EQ(peer_endpoints_[0].unsent_max, 0u);
  AddKeyOf(2);
  EXPECT_EQ(peer_endpoints_[0].unsent_max, 64u * 1024);
  EXPECT_EQ(peer_endpoints_[2].unsent_max, 64u * 1024);
  transport_.Break(peers_[2], TransportError::kReset);
  loop_.RunOnce();
  EXPECT_EQ(peer_endpoints_[0].unsent_max, 128u * 1024);
  EXPECT_EQ(exchange::UnsentBytesMax(7), 32u * 1024);
}

}  // namespace
}  // namespace phub::server
