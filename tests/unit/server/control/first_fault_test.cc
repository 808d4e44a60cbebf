// Racks that find different faults of a job at the same time: all ranks get the one that rack 0 has
// recorded first, within a bounded time.
#include "server/control/racks/rack_jobs.h"
#include "tests/unit/server/control/rack_jobs_fixture.h"

namespace phub::server {
namespace {

class FirstFaultTest : public RackJobsTest {
 protected:
  CallPtr<v1::LeaveResponse> Offer(std::uint32_t rank, const std::string& verdict) {
    return NodeOf(rank).Leave(sessions[rank], verdict);
  }
  void ExpectFaultEverywhere(const std::string& fault) {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) EXPECT_EQ(FaultOf(rank), fault) << rank;
  }
};

TEST_F(FirstFaultTest, TheFirstThatRack0RecordsIsEveryones) {
  EnterAll();
  const auto first = Offer(2, "rank 5 is silent");
  const auto second = Offer(4, "rank 2 is silent");
  const auto third = Offer(5, "another reason");
  // Expect: nobody is notified before rack 0 has answered.
  for (const auto& call : {first, second, third}) EXPECT_FALSE(call->answered());
  EXPECT_EQ(FaultOf(3), "");
  EXPECT_EQ(FaultOf(4), "");
  Settle();
  ExpectFaultEverywhere("rank 5 is silent");
  EXPECT_TRUE(first->ok()) << first->message();
  for (const auto& call : {second, third}) {
    EXPECT_EQ(call->code(), absl::StatusCode::kAborted);
    EXPECT_EQ(call->message(), "rank 5 is silent");
  }
  ExpectNothingLeft();
}

TEST_F(FirstFaultTest, WhatRack0FoundItselfComesFirst) {
  EnterAll();
  Offer(0, "rank 3 is silent");
  const auto late = Offer(2, "rank 0 is silent");
  Settle();
  ExpectFaultEverywhere("rank 3 is silent");
  EXPECT_EQ(late->message(), "rank 3 is silent");
}

// Rack 1 heard rack 0 a moment ago, but no messages pass between them any more.
TEST_F(FirstFaultTest, TheWaitForRack0IsBounded) {
  EnterAll();
  SetCut(1, 0, Cut::kAll);
  SetCut(1, 2, Cut::kAll);
  SetCut(0, 1, Cut::kAll);
  const auto own = Offer(2, "rank 0 is silent");
  Settle();
  EXPECT_EQ(FaultOf(2), "");
  EXPECT_FALSE(own->answered());
  Advance(RackJobs::kFirstFaultWaitMax);
  EXPECT_EQ(FaultOf(2), "rank 0 is silent");
  EXPECT_EQ(FaultOf(3), "rank 0 is silent");
  EXPECT_TRUE(own->ok()) << own->message();
}

// A rank that attends meanwhile gets the same.
TEST_F(FirstFaultTest, AStreamThatIsOpenedMeanwhileWaitsToo) {
  EnterAll();
  Offer(2, "rank 5 is silent");
  const auto sink = std::make_shared<RecordingSink>();
  ASSERT_TRUE(node(1).control().liveness().AttachStream(sessions[3], sink).ok());
  EXPECT_EQ(sink->fault(), nullptr);
  Settle();
  ASSERT_NE(sink->fault(), nullptr);
  EXPECT_EQ(sink->fault()->message(), "rank 5 is silent");
}

}  // namespace
}  // namespace phub::server
