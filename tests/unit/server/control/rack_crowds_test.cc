// Ranks that send many requests without waiting for answers, while another rack's daemon receives
// nothing.
#include "server/control/racks/rack_jobs.h"
#include "tests/unit/server/control/rack_jobs_fixture.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class RackCrowdsTest : public RackJobsTest {
 protected:
  // All ranks are in another job, too. Returns their sessions.
  std::vector<std::string> EnterOther() {
    std::vector<CallPtr<v1::JoinResponse>> calls;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) calls.push_back(Join(rank, "other"));
    Settle();
    std::vector<std::string> other;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      EXPECT_TRUE(calls[rank]->ok()) << calls[rank]->message();
      other.push_back(calls[rank]->response.session_id());
      EXPECT_TRUE(NodeOf(rank).Commit(other.back())->ok());
    }
    return other;
  }
  // At `at`, digits ended because of the messages that wait for that rack, and it is over
  // everywhere. The other job continues.
  void ExpectOnlyDigitsEnded(std::uint32_t at, std::uint32_t waits_for,
                             const std::vector<std::string>& other) {
    EXPECT_EQ(node(at).Counter("phub_jobs_crowded_out_total"), 1u);
    EXPECT_EQ(node(at).Counter("phub_jobs_failed_total"), 1u);
    EXPECT_GE(node(at).Counter("phub_peer_messages_dropped_total"), 1u);
    Settle();
    Advance(RackJobs::kFirstFaultWaitMax);  // rack 0 cannot say that it has another reason
    EXPECT_THAT(FaultOf(2 * at), AllOf(HasSubstr("job digits failed"),
                                       HasSubstr("(node" + std::to_string(waits_for) + ":7700)"),
                                       HasSubstr("messages of this job were dropped"),
                                       HasSubstr("rack_messages_lost")));
    SetCut(at, waits_for, Cut::kNone);
    Settle();
    ExpectRunStateEverywhere("failed");
    ExpectRunStateEverywhere("standing", "other");
    std::vector<CallPtr<v1::BarrierResponse>> barriers;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      barriers.push_back(NodeOf(rank).Barrier(other[rank], 0));
    }
    Settle();
    for (const auto& barrier : barriers) EXPECT_TRUE(barrier->ok()) << barrier->message();
  }
};

// Receive load refusals from one rank, one after the other, while another rack receives nothing.
TEST_F(RackCrowdsTest, ARankThatRefusesLoadsWithoutEndEndsItsJobAlone) {
  EnterAll();
  const std::vector<std::string> other = EnterOther();
  SetCut(0, 1, Cut::kAll);
  v1::LoadStateRequest refusal;
  refusal.set_session_id(sessions[0]);
  refusal.set_refusal_code(static_cast<int>(absl::StatusCode::kNotFound));
  refusal.set_refusal("no manifest");
  int refused = 0;
  for (; refused < 5000 && node(0).control().loads().BeginLoad(refusal).ok(); ++refused) {
    node(0).control().Poll();
    if (refused % 50 == 0) Settle();  // rack 2 receives everything
  }
  EXPECT_EQ(refused, 4096 + 1);
  ExpectOnlyDigitsEnded(0, 1, other);
}

// And batches of keys: a rank can add the next batch without waiting for the previous one.
TEST_F(RackCrowdsTest, ARankThatAddsKeysWithoutWaitingEndsItsJobAlone) {
  EnterAll();
  const std::vector<std::string> other = EnterOther();
  node(1).network.queues[0].set_limits({.messages = 64, .bytes = 1 << 20});
  SetCut(1, 0, Cut::kAll);
  for (std::uint32_t batch = 0; batch < 64; ++batch) {
    node(1).AddKeys(
        RackNode::Batch(sessions[2], batch, {RackNode::Key("key" + std::to_string(batch), 16)}));
    node(1).Settle();
  }
  ExpectOnlyDigitsEnded(1, 0, other);
}

// Requests for jobs count for their tenant. Their ranks may ask again, and no job ends.
TEST_F(RackCrowdsTest, ATenantThatAsksForManyJobsEndsNobodysJob) {
  EnterAll();
  const std::vector<std::string> other = EnterOther();
  for (std::uint32_t rack = 0; rack < kRacks; ++rack) {
    node(rack).control().tenants().SetTenant({.name = "greedy"});
  }
  node(1).network.queues[0].set_limits({.messages = 64, .bytes = 1 << 20});
  SetCut(1, 0, Cut::kAll);
  const auto ask = [&](int job) {
    v1::JoinRequest request = JoinOf(2, "job" + std::to_string(job));
    request.set_tenant("greedy");
    return node(1).Join(request);
  };
  std::vector<CallPtr<v1::JoinResponse>> calls;
  for (int job = 0; job < 65; ++job) calls.push_back(ask(job));
  for (const auto& call : calls) EXPECT_FALSE(call->answered()) << call->message();
  EXPECT_EQ(node(1).Counter("phub_peer_messages_dropped_total"), 65u);
  EXPECT_EQ(node(1).Counter("phub_jobs_crowded_out_total"), 0u);
  const auto again = ask(0);
  SetCut(1, 0, Cut::kNone);
  Settle();
  EXPECT_TRUE(again->ok()) << again->message();
  ExpectRunStateEverywhere("standing");
  ExpectRunStateEverywhere("standing", "other");
}

}  // namespace
}  // namespace phub::server
