// Streams of jobs that share several aggregators: each core loop has one, and the loss of one
// concerns only its core loops.
#include "tests/unit/server/control/sum_streams_fixture.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class SumAggregatorsTest : public SumStreamsTest {
 protected:
  explicit SumAggregatorsTest(std::uint32_t core_count = 4) : SumStreamsTest(core_count) {
    aggregator_.names = {"/run/a.sock", "sums:7702"};
  }
  // Grants all requests, the i-th of each aggregator with number i, from 1 on.
  void GrantAll() {
    std::map<std::uint32_t, std::uint32_t> numbers;
    for (const auto& asked : std::vector(aggregator_.asked))
      GrantTo(asked, ++numbers[asked.aggregator.value]);
  }
  std::vector<std::uint32_t> AskedOf(const std::string& job) const {
    std::vector<std::uint32_t> aggregators;
    for (const auto& asked : aggregator_.asked)
      if (asked.request.job == job) aggregators.push_back(asked.aggregator.value);
    return aggregators;
  }
  void Wait(int seconds) {
    for (int i = 0; i < seconds; ++i) {
      for (const std::string& session : sessions_) Heartbeat(session);
      Advance(kSecond);
    }
  }
};

TEST_F(SumAggregatorsTest, CoreLoopsShareThem) {
  Enter();
  OpenBoth();
  EXPECT_THAT(AskedOf("digits"), ElementsAre(0, 1, 0, 1));
  for (const auto& asked : aggregator_.asked) {
    EXPECT_EQ(asked.core.value % 2, asked.aggregator.value);
    EXPECT_EQ(aggregation::TextOf(asked.request.core_loop),
              "127.0.0.1:" + std::to_string(6000 + asked.aggregator.value));
  }
  EXPECT_THAT(Ways()[1], "tcp: waiting for the answer of phub-aggregator at sums:7702");
  GrantAll();
  const std::string first = "aggregator 10.0.0.9:7701 (/run/a.sock)";
  const std::string second = "aggregator 10.0.0.10:7701 (sums:7702)";
  EXPECT_THAT(Ways(), ElementsAre(first, second, first, second));
}

// Both aggregators have granted leases 1 and 2.
TEST_F(SumAggregatorsTest, OnlyTheStreamsOfALostAggregatorClose) {
  Enter();
  OpenBoth();
  GrantAll();
  control().sum_streams().HandleLost(AggregatorIndex{1}, aggregation::LeaseNumber{1},
                                     absl::UnavailableError("sums:7702 is gone"));
  control().sum_streams().HandleLost(AggregatorIndex{1}, aggregation::LeaseNumber{2},
                                     absl::UnavailableError("sums:7702 is gone"));
  Settle();
  const std::string first = "aggregator 10.0.0.9:7701 (/run/a.sock)";
  const std::string lost = "tcp: sums:7702 is gone";
  EXPECT_THAT(Ways(), ElementsAre(first, lost, first, lost));
  for (std::size_t core = 0; core < 4; ++core)
    EXPECT_EQ(Commands(Command::Kind::kCloseStream, core), core % 2) << "core " << core;
  // Expect: it is asked again, and not the other one.
  aggregator_.asked.clear();
  Wait(6);
  EXPECT_THAT(AskedOf("digits"), ElementsAre(1, 1));
  GrantTo(aggregator_.asked[0], 3);
  GrantTo(aggregator_.asked[1], 4);
  const std::string second = "aggregator 10.0.0.10:7701 (sums:7702)";
  EXPECT_THAT(Ways(), ElementsAre(first, second, first, second));
}

TEST_F(SumAggregatorsTest, ARefusalOfOneIsTheReasonOfItsCoreLoops) {
  Enter();
  OpenBoth();
  for (const auto& asked : std::vector(aggregator_.asked)) {
    if (asked.aggregator.value == 0) {
      control().sum_streams().HandleGranted(asked.aggregator, asked.job, asked.core,
                                            absl::ResourceExhaustedError("the pool is full"));
    } else {
      GrantTo(asked, 1 + asked.core.value);
    }
  }
  const std::string second = "aggregator 10.0.0.10:7701 (sums:7702)";
  EXPECT_THAT(Ways(),
              ElementsAre("tcp: the pool is full", second, "tcp: the pool is full", second));
}

TEST_F(SumAggregatorsTest, SilenceNamesTheAggregator) {
  Enter();
  OpenBoth();
  GrantAll();
  JobShard& shard = *cores[3]->Executed(Command::Kind::kOpenStream)[0].shard;
  shard.sums->silent_since.Set(static_cast<std::uint64_t>(clock.now));
  Wait(6);
  EXPECT_THAT(Ways()[3],
              HasSubstr("tcp: no sum has arrived from 10.0.0.10:7701 (sums:7702) for 5 s"));
  EXPECT_THAT(aggregator_.ended, ElementsAre(Pair(1, 2)));
  EXPECT_THAT(Ways()[1], HasSubstr("aggregator 10.0.0.10:7701"));
}

TEST_F(SumAggregatorsTest, LeasesEndWhereTheyWereGranted) {
  Enter();
  OpenBoth();
  GrantAll();
  Leave(sessions_[0]);
  Leave(sessions_[1]);
  Settle();
  EXPECT_THAT(aggregator_.ended, ElementsAre(Pair(0, 1), Pair(1, 1), Pair(0, 2), Pair(1, 2)));
  GrantTo(aggregator_.asked[1], 9);  // it was on its way
  EXPECT_EQ(aggregator_.ended.back(), std::pair(1u, 9u));
}

class SumAggregatorsOfOneLoop : public SumAggregatorsTest {
 protected:
  SumAggregatorsOfOneLoop() : SumAggregatorsTest(1) {}
};

TEST_F(SumAggregatorsOfOneLoop, JobsShareThem) {
  Enter({}, "a");
  OpenBoth();
  const std::vector<std::string> sessions = sessions_;
  Enter({}, "b");
  OpenBoth();
  EXPECT_THAT(AskedOf("a"), ElementsAre(0));
  EXPECT_THAT(AskedOf("b"), ElementsAre(1));
  // A job that never has a stream does not count.
  Enter([](v1::JobOptions& asked) { asked.set_apply(v1::APPLY_ITERATION); }, "c");
  Enter({}, "d");
  OpenBoth();
  EXPECT_THAT(AskedOf("d"), ElementsAre(0));
  Leave(sessions[0]);
  Leave(sessions[1]);
  Settle();
  Enter({}, "e");
  OpenBoth();
  Enter({}, "f");
  OpenBoth();
  EXPECT_THAT(AskedOf("e"), ElementsAre(0));
  EXPECT_THAT(AskedOf("f"), ElementsAre(1)) << "a's place was taken by e";
}

TEST_F(SumAggregatorsOfOneLoop, DaemonsOfARackBeginWithDifferentOnes) {
  options.rack_endpoints = {"node1:7700", "node2:7700"};
  options.rack_self = 1;
  adjust_ = [&](v1::JoinRequest& request) {
    request.set_configuration(GetRack({})->response.configuration());
    request.set_daemon(1);
    request.set_incarnation(7);
    for (int daemon = 0; daemon < 2; ++daemon) request.add_daemon_cores(1);
  };
  Enter();
  OpenBoth();
  EXPECT_THAT(AskedOf("digits"), ElementsAre(1));
}

}  // namespace
}  // namespace phub::server
