// How control passes tenants' weights and bandwidths to core loops.
#include "tests/unit/server/control/control_fixture.h"

namespace phub::server {
namespace {

class SharesTest : public ControlTest {
 protected:
  // The last share of any tenant that this core loop received.
  TenantShare LastTold(std::size_t core) {
    Settle();
    const auto told = cores[core]->Executed(Command::Kind::kSetShare);
    return told.empty() ? TenantShare{} : told.back().share;
  }
  std::size_t TimesTold(std::size_t core) {
    Settle();
    return cores[core]->Executed(Command::Kind::kSetShare).size();
  }
};

TEST_F(SharesTest, JobsOfATenantHaveItsNumberAndItsShareFromTheStart) {
  control().tenants().SetTenant({.name = kDefaultTenant, .quota = {.weight = 300}});
  Enter(0, 1, "first");
  Enter(0, 1, "second");
  const auto added = cores[0]->Executed(Command::Kind::kAddJob);
  ASSERT_EQ(added.size(), 2u);
  EXPECT_EQ(added[0].shard->config.tenant, added[1].shard->config.tenant);
  EXPECT_NE(added[0].shard->config.tenant, 0u);
  EXPECT_EQ(added[1].shard->config.share.weight, 300u);
  EXPECT_EQ(added[1].shard->config.share.bandwidth_bytes, 0u);
}

TEST_F(SharesTest, AQuotaThatIsSetReachesJobsThatRun) {
  const std::string session = Enter(0, 1);
  AddKeys(Batch(session, 0, {Key("w", 1 << 16)}));
  control().tenants().SetTenant(
      {.name = kDefaultTenant, .quota = {.weight = 50, .bandwidth_bytes = 100'000'000}});
  std::uint64_t sum = 0;
  for (std::size_t core = 0; core < 2; ++core) {
    EXPECT_EQ(LastTold(core).weight, 50u);
    sum += LastTold(core).bandwidth_bytes;
  }
  EXPECT_NEAR(static_cast<double>(sum), 1e8, 2.0);
  // Lifts the limit: default weight, no bandwidth limit.
  control().tenants().SetTenant({.name = kDefaultTenant});
  EXPECT_EQ(LastTold(0).weight, 100u);
  EXPECT_EQ(LastTold(0).bandwidth_bytes, 0u);
}

TEST_F(SharesTest, PartsOfABandwidthAreAsChunksLieAndFollowThem) {
  control().tenants().SetTenant(
      {.name = kDefaultTenant, .quota = {.bandwidth_bytes = 100'000'000}});
  const std::string session = Enter(0, 1);
  AddKeys(Batch(session, 0, {Key("w", 1)}));  // one chunk, on one of two core loops
  const std::uint64_t first = LastTold(0).bandwidth_bytes;
  const std::uint64_t second = LastTold(1).bandwidth_bytes;
  EXPECT_EQ(std::max(first, second), 100'000'000u);
  // A minimum, so that no tenant is blocked.
  EXPECT_EQ(std::min(first, second), 64u * 1024);
  AddKeys(Batch(session, 1, {Key("v", 1)}));  // on the other core loop
  EXPECT_EQ(LastTold(0).bandwidth_bytes, 50'000'000u);
  EXPECT_EQ(LastTold(1).bandwidth_bytes, 50'000'000u);
}

TEST_F(SharesTest, NobodyIsToldWhereNothingIsLimited) {
  const std::string session = Enter(0, 1);
  AddKeys(Batch(session, 0, {Key("w", 1000)}));
  EXPECT_EQ(TimesTold(0), 0u);
}

class NonFiniteTest : public ControlTest {
 protected:
  v1::JobInfo Info() {
    v1::GetJobRequest request;
    request.set_job("digits");
    return GetJob(request)->response;
  }
  Event NonFiniteAt(LaneOwner source) {
    return {.kind = Event::Kind::kNonFinite,
            .code = FaultCode::kNonFinite,
            .source = source,
            .key = KeyIndex{0},
            .iteration = Iteration{12},
            .shard = cores[0]->Executed(Command::Kind::kAddJob).front().shard};
  }
};

TEST_F(NonFiniteTest, AJobTellsItsFirstSumThatWasNotFinite) {
  const auto sessions = EnterAll(2);
  AddKeysOfAll(sessions, {Key("fc1", 10)});
  EXPECT_EQ(Info().screening(), "report");
  EXPECT_EQ(Info().nonfinite_first(), "");
  const Event event = NonFiniteAt(Rank{1});
  event.shard->metrics.nonfinite_sums.Add(3);
  event.shard->metrics.nonfinite_gradients.Add(4);
  cores[0]->Emit(event);
  cores[0]->Emit(NonFiniteAt(Rank{0}));  // a second report changes nothing
  Settle();
  EXPECT_EQ(Info().nonfinite_first(), "rank 1 (node1), key fc1, iteration 12");
  EXPECT_EQ(Info().nonfinite_sums(), 3u);
  EXPECT_EQ(Info().nonfinite_gradients(), 4u);
  EXPECT_EQ(Counter("phub_job_nonfinite_sums_total"), 3u);
  EXPECT_EQ(Info().state(), "running");
  // A report for a job that is gone has no effect either.
  for (const std::string& session : sessions) Leave(session);
  Advance(kSecond);
  EXPECT_EQ(Info().nonfinite_sums(), 3u);
}

TEST_F(NonFiniteTest, ARejectedSumEndsTheJobByRankAndKey) {
  const auto sessions = EnterAll(2);
  AddKeysOfAll(sessions, {Key("fc1", 10)});
  Event event = NonFiniteAt(Rank{1});
  event.kind = Event::Kind::kFault;
  cores[0]->Emit(event);
  Settle();
  const v1::Fault* fault = FaultAt(sessions[0]);
  ASSERT_NE(fault, nullptr);
  EXPECT_EQ(fault->message(),
            "job digits failed: rank 1 (node1, pid 4701) pushed NaN or infinity; key fc1 iteration "
            "12 (non_finite)");
  EXPECT_EQ(fault->rank(), 1u);
  EXPECT_EQ(fault->key(), "fc1");
}

TEST_F(NonFiniteTest, AnOverflowBlamesNobody) {
  const auto sessions = EnterAll(2);
  AddKeysOfAll(sessions, {Key("fc1", 10)});
  Event event = NonFiniteAt({});
  event.kind = Event::Kind::kFault;
  cores[0]->Emit(event);
  Settle();
  const v1::Fault* fault = FaultAt(sessions[0]);
  ASSERT_NE(fault, nullptr);
  EXPECT_EQ(fault->message(),
            "job digits failed: the sum of finite gradients overflowed; key fc1 iteration 12 "
            "(non_finite)");
  EXPECT_FALSE(fault->has_rank());
}

}  // namespace
}  // namespace phub::server
