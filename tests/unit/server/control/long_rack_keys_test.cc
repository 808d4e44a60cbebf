// Batches of many keys in jobs that span racks: no daemon builds or compares them under control's
// lock, whether its own rank or another rack sent them, and all daemons still agree.
#include <array>

#include "tests/unit/server/control/held_background.h"
#include "tests/unit/server/control/rack_jobs_fixture.h"

namespace phub::server {
namespace {

using ::testing::HasSubstr;

constexpr int kKeysOfRacks = 1000;

class LongRackKeysTest : public RackJobsTest {
 protected:
  void SetUp() override {
    for (std::uint32_t rack = 0; rack < kRacks; ++rack)
      node(rack).control().turns().SetBackground(backgrounds[rack]);
    EnterAll();
  }
  CallPtr<v1::AddKeysResponse> Add(std::uint32_t rank, std::uint32_t batch,
                                   const std::vector<v1::KeySpec>& keys) {
    return NodeOf(rank).AddKeys(RackNode::Batch(sessions[rank], batch, keys));
  }
  static std::vector<v1::KeySpec> ManyKeys(const std::string& prefix = "key") {
    std::vector<v1::KeySpec> keys;
    for (int i = 0; i < kKeysOfRacks; ++i)
      keys.push_back(RackNode::Key(prefix + std::to_string(i), 3));
    return keys;
  }
  bool RunOneAt(std::uint32_t rack) {
    node(rack).control().turns().Begin();
    return backgrounds[rack].RunOne();
  }
  void RunAll() {
    for (bool moved = true; moved;) {
      Settle();
      moved = false;
      for (std::uint32_t rack = 0; rack < kRacks; ++rack) {
        while (RunOneAt(rack)) moved = true;
      }
    }
  }
  void ExpectFewUnits() {
    for (std::uint32_t rack = 0; rack < kRacks; ++rack)
      EXPECT_LE(node(rack).control().turns().units(), TurnBudget().at_once) << rack;
  }

  std::array<HeldBackground, kRacks> backgrounds;
};

TEST_F(LongRackKeysTest, NothingOfABatchIsDoneUnderTheLock) {
  std::vector<CallPtr<v1::AddKeysResponse>> calls = {Add(0, 0, ManyKeys())};
  EXPECT_EQ(node(0).network.sent[v1::PeerMessage::kKeys], 0);
  EXPECT_EQ(backgrounds[0].pieces.size(), 1u);
  while (RunOneAt(0)) ExpectFewUnits();
  EXPECT_EQ(node(0).network.sent[v1::PeerMessage::kKeys], kRacks - 1);
  Settle();
  for (const std::uint32_t rack : {1u, 2u}) EXPECT_EQ(backgrounds[rack].pieces.size(), 1u) << rack;
  ExpectFewUnits();
  // A rank of rack 1 waits for the build that rack 0 has caused.
  calls.push_back(Add(2, 0, ManyKeys()));
  EXPECT_EQ(backgrounds[1].pieces.size(), 1u);
  EXPECT_FALSE(calls[0]->answered());
  for (const std::uint32_t rank : {1u, 3u, 4u, 5u}) calls.push_back(Add(rank, 0, ManyKeys()));
  RunAll();
  for (const auto& call : calls) {
    ASSERT_TRUE(call->ok()) << call->message();
    EXPECT_EQ(call->response.placements_size(), kKeysOfRacks);
  }
}

// Every rack defines the batch, and gets it from the others while it builds its own.
TEST_F(LongRackKeysTest, RacksMayAddABatchAtTheSameTime) {
  std::vector<CallPtr<v1::AddKeysResponse>> calls;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) calls.push_back(Add(rank, 0, ManyKeys()));
  RunAll();
  for (const auto& call : calls) ASSERT_TRUE(call->ok()) << call->message();
  // A second batch follows the first at once: its message may arrive while the first is built.
  calls = {Add(0, 1, ManyKeys("more")), Add(2, 1, ManyKeys("more"))};
  while (RunOneAt(0)) continue;
  calls.push_back(Add(0, 2, ManyKeys("most")));
  while (RunOneAt(0)) continue;
  Settle();
  EXPECT_FALSE(calls[0]->answered());
  RunAll();
  EXPECT_TRUE(calls[0]->answered());
  EXPECT_EQ(FaultOf(0), "");
  for (const std::uint32_t rank : {1u, 2u, 3u, 4u, 5u}) {
    if (rank != 2) calls.push_back(Add(rank, 1, ManyKeys("more")));
    RunAll();
    calls.push_back(Add(rank, 2, ManyKeys("most")));
  }
  RunAll();
  for (const auto& call : calls) ASSERT_TRUE(call->ok()) << call->message();
}

// A rack that has the keys of a batch does not count as one that has the same keys before it is
// compared: nobody may push to keys that differ.
TEST_F(LongRackKeysTest, NobodyGetsKeysThatDifferElsewhere) {
  std::vector<v1::KeySpec> others = ManyKeys();
  others[700].set_element_count(4);
  const auto first = Add(0, 0, ManyKeys());
  while (RunOneAt(0)) continue;
  const auto second = Add(4, 0, others);
  while (RunOneAt(2)) continue;
  // Rack 1 builds the batch of rack 0. All have a batch 0 now, and say so, but nothing is compared.
  Settle();
  EXPECT_TRUE(RunOneAt(1) && RunOneAt(1));
  Settle();
  for (const HeldBackground& each : backgrounds) EXPECT_FALSE(each.pieces.empty());
  EXPECT_FALSE(first->answered());
  EXPECT_FALSE(second->answered());
  RunAll();
  EXPECT_FALSE(first->ok());
  EXPECT_FALSE(second->ok());
  EXPECT_THAT(FaultOf(0), HasSubstr("key 700"));
  RunAll();
  ExpectRunStateEverywhere("failed");
}

TEST_F(LongRackKeysTest, AJobMayEndWhileItsKeysAreBuilt) {
  for (int steps = 0; steps < 4; ++steps) {
    if (steps > 0) EnterAll();
    const auto first = Add(0, 0, ManyKeys());
    const auto second = Add(2, 0, ManyKeys());
    for (int i = 0; i < steps; ++i) {
      Settle();
      for (std::uint32_t rack = 0; rack < kRacks; ++rack) RunOneAt(rack);
    }
    v1::EvictJobRequest evict;
    evict.set_job("digits");
    node(1).EvictJob(evict);
    Settle();
    RunAll();
    EXPECT_FALSE(first->ok()) << steps;
    EXPECT_FALSE(second->ok()) << steps;
    Advance(10 * kSecond);
    RunAll();
    ExpectNothingLeft();
    sessions.clear();
  }
}

}  // namespace
}  // namespace phub::server
