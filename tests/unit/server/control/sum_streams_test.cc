// Which jobs have streams of sums, and from when to when.
#include "tests/unit/server/control/sum_streams_fixture.h"

namespace phub::server {
namespace {

using ::testing::HasSubstr;

TEST_F(SumStreamsTest, AStreamOpensOnceEveryRankHasALane) {
  Enter();
  EXPECT_TRUE(last_join.sum_streams());
  EXPECT_EQ(Way(), "tcp: rank 0 has no lane yet");
  OpenLane(0, "10.0.0.5:100");
  EXPECT_EQ(Way(), "tcp: rank 1 has no lane yet");
  EXPECT_TRUE(aggregator_.asked.empty());
  OpenLane(1, "10.0.0.6:101");
  ASSERT_EQ(aggregator_.asked.size(), 1u);
  const SumLeaseRequest& request = aggregator_.asked[0].request;
  EXPECT_EQ(request.job, "digits");
  EXPECT_EQ(request.count_max, 350u);
  EXPECT_EQ(request.slot_count, kStreamPositions * 2);  // 512 elements of 16 bits
  ASSERT_EQ(request.workers.size(), 2u);
  EXPECT_EQ(aggregation::TextOf(request.workers[1]), "10.0.0.6:101");
  EXPECT_EQ(aggregation::TextOf(request.core_loop), "127.0.0.1:6000");
  EXPECT_EQ(Commands(Command::Kind::kOpenStream), 0u);
  Grant(5);
  ASSERT_EQ(Commands(Command::Kind::kOpenStream), 1u);
  EXPECT_EQ(cores[0]->Executed(Command::Kind::kOpenStream)[0].lease->number, 5u);
  EXPECT_EQ(Way(), "aggregator 10.0.0.9:7701");
}

TEST_F(SumStreamsTest, ALostLeaseClosesTheStreamAndAnotherIsAskedForLater) {
  Enter();
  OpenBoth();
  Grant(5);
  control().sum_streams().HandleLost(AggregatorIndex{0}, aggregation::LeaseNumber{4},
                                     absl::UnavailableError("old"));
  EXPECT_EQ(Commands(Command::Kind::kCloseStream), 0u);
  control().sum_streams().HandleLost(AggregatorIndex{0}, aggregation::LeaseNumber{5},
                                     absl::UnavailableError("gone"));
  Settle();
  EXPECT_EQ(Commands(Command::Kind::kCloseStream), 1u);
  EXPECT_EQ(Way(), "tcp: gone");
  EXPECT_EQ(aggregator_.asked.size(), 1u);
  for (int i = 0; i < 6; ++i) {
    for (const std::string& session : sessions_) Heartbeat(session);
    Advance(kSecond);
  }
  EXPECT_EQ(aggregator_.asked.size(), 2u);
  Grant(6);
  EXPECT_EQ(Commands(Command::Kind::kOpenStream), 2u);
  EXPECT_EQ(Way(), "aggregator 10.0.0.9:7701");
}

TEST_F(SumStreamsTest, ARefusalIsTheReasonForTcp) {
  Enter();
  OpenBoth();
  const ScriptedAggregators::Asked& asked = aggregator_.asked.back();
  control().sum_streams().HandleGranted(asked.aggregator, asked.job, asked.core,
                                        absl::ResourceExhaustedError("the pool is full"));
  EXPECT_EQ(Way(), "tcp: the pool is full");
  EXPECT_EQ(Commands(Command::Kind::kOpenStream), 0u);
}

TEST_F(SumStreamsTest, ALeaseThatNobodyWantsAnyMoreIsGivenBack) {
  Enter();
  OpenBoth();
  Grant(5);
  Leave(sessions_[0]);
  Leave(sessions_[1]);
  Settle();
  EXPECT_EQ(aggregator_.Ended(), std::vector<std::uint32_t>{5});
  Grant(6);  // it was on its way
  EXPECT_EQ(aggregator_.Ended(), (std::vector<std::uint32_t>{5, 6}));
}

TEST_F(SumStreamsTest, AStreamWithoutSumsCloses) {
  Enter();
  OpenBoth();
  Grant(5);
  JobShard& shard = *cores[0]->Executed(Command::Kind::kOpenStream)[0].shard;
  shard.sums->silent_since.Set(static_cast<std::uint64_t>(clock.now));
  const auto wait = [&](int seconds) {
    for (int i = 0; i < seconds; ++i) {
      for (const std::string& session : sessions_) Heartbeat(session);
      Advance(kSecond);
    }
  };
  wait(4);
  EXPECT_EQ(Commands(Command::Kind::kCloseStream), 0u);
  wait(2);
  EXPECT_EQ(Commands(Command::Kind::kCloseStream), 1u);
  EXPECT_THAT(Way(), HasSubstr("tcp: no sum has arrived from 10.0.0.9:7701 for 5 s"));
  EXPECT_EQ(aggregator_.Ended(), std::vector<std::uint32_t>{5});
  wait(30);
  EXPECT_EQ(aggregator_.asked.size(), 1u);
  wait(31);
  EXPECT_EQ(aggregator_.asked.size(), 2u);
}

TEST_F(SumStreamsTest, AnotherSocketOfAWorkerNeedsAnotherLease) {
  Enter([](v1::JobOptions& asked) { asked.set_on_loss(v1::LOSS_POLICY_WAIT); });
  OpenBoth();
  Grant(5);
  OpenLane(1, "10.0.0.6:102");
  EXPECT_EQ(Commands(Command::Kind::kCloseStream), 1u);
  EXPECT_EQ(aggregator_.Ended(), std::vector<std::uint32_t>{5});
  ASSERT_EQ(aggregator_.asked.size(), 2u);
  EXPECT_EQ(aggregation::TextOf(aggregator_.asked[1].request.workers[1]), "10.0.0.6:102");
}

TEST_F(SumStreamsTest, LanesThatCannotHaveOneAreNamed) {
  Enter();
  OpenLane(0, "10.0.0.5:100", /*version=*/4);
  OpenLane(1, "10.0.0.6:101");
  EXPECT_EQ(Way(), "tcp: the lane of rank 0 has version 4; it needs 5");
  EXPECT_TRUE(aggregator_.asked.empty());
}

TEST_F(SumStreamsTest, AWorkerWithoutASocketIsNamed) {
  Enter();
  OpenLane(0, "10.0.0.5:100");
  OpenLane(1, "");
  EXPECT_EQ(Way(), "tcp: rank 1 has no socket for datagrams");
}

TEST_F(SumStreamsTest, OtherTransportsAreNamed) {
  Enter();
  OpenLane(0, "10.0.0.5:100");
  OpenLane(1, "10.0.0.6:101", wire::kLaneVersion, "verbs");
  EXPECT_EQ(Way(), "tcp: the lane of rank 1 is verbs 10.0.0.5:40112");
}

TEST_F(SumStreamsTest, WithoutASocketForTheCoreLoopThereIsNoLease) {
  aggregator_.ports = absl::ResourceExhaustedError("no descriptors");
  Enter();
  OpenBoth();
  EXPECT_EQ(Way(), "tcp: no descriptors");
  EXPECT_TRUE(aggregator_.asked.empty());
}

struct Never {
  const char* reason;
  std::function<void(v1::JobOptions&)> change;
};
class SumStreamsNever : public SumStreamsTest, public ::testing::WithParamInterface<Never> {};

TEST_P(SumStreamsNever, AreNamed) {
  Enter(GetParam().change);
  EXPECT_FALSE(last_join.sum_streams());
  EXPECT_EQ(Way(), std::string("tcp: ") + GetParam().reason);
  OpenBoth();
  EXPECT_TRUE(aggregator_.asked.empty());
}
INSTANTIATE_TEST_SUITE_P(
    Jobs, SumStreamsNever,
    ::testing::Values(Never{"the job has apply=iteration",
                            [](v1::JobOptions& asked) { asked.set_apply(v1::APPLY_ITERATION); }},
                      Never{"the job has restart=true",
                            [](v1::JobOptions& asked) {
                              asked.set_on_loss(v1::LOSS_POLICY_WAIT);
                              asked.set_restart(true);
                            }},
                      Never{"chunks of 1.0 MiB have more than 96 blocks of 350 elements",
                            [](v1::JobOptions& asked) {
                              asked.set_chunk_bytes(1 << 20);
                              asked.set_staging_bytes_per_lane(1 << 20);
                            }}));

TEST_F(SumStreamsTest, EncryptedLanesStayWhereTheyAre) {
  options.tls_lanes = true;
  Enter();
  EXPECT_EQ(Way(), "tcp: data_tls is on, and datagrams are not encrypted");
}

TEST_F(SumStreamsTest, WithoutAnAggregatorTheSettingIsNamed) {
  has_aggregator_ = false;
  Enter();
  EXPECT_FALSE(last_join.sum_streams());
  EXPECT_EQ(Way(), "tcp: the setting sum_aggregator is empty");
}

}  // namespace
}  // namespace phub::server
