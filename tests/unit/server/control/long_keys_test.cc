// Batches of many keys are built, compared and described by another thread: control's lock is not
// held, and everything else goes on meanwhile.
#include "tests/unit/server/control/control_fixture.h"
#include "tests/unit/server/control/held_background.h"

namespace phub::server {
namespace {

using ::testing::HasSubstr;

class LongKeysTest : public ControlTest {
 protected:
  static constexpr int kMany = 1000;

  void SetUp() override { control().turns().SetBackground(background); }
  void RunAll() {
    do {
      Settle();
    } while (background.RunOne());
  }
  static std::vector<v1::KeySpec> Many(const std::string& prefix = "key") {
    std::vector<v1::KeySpec> keys;
    for (int i = 0; i < kMany; ++i) keys.push_back(Key(prefix + std::to_string(i), 3));
    return keys;
  }
  void Evict(const std::string& job) {
    v1::EvictJobRequest request;
    request.set_job(job);
    EvictJob(request);
    Advance(10 * kSecond);
  }

  HeldBackground background;
};

TEST_F(LongKeysTest, NothingOfABatchIsDoneUnderTheLock) {
  const std::vector<std::string> sessions = EnterAll(2);
  const auto first = AddKeys(Batch(sessions[0], 0, Many()));
  const auto second = AddKeys(Batch(sessions[1], 0, Many()));
  Settle();
  EXPECT_EQ(background.pieces.size(), 1u) << "the second call waits for the first one's build";
  EXPECT_FALSE(first->answered());
  // Expect: small batches of others are not delayed.
  const std::string other = Enter(0, 1, "other");
  const auto small = AddKeys(Batch(other, 0, {Key("a", 10)}));
  Settle();
  EXPECT_TRUE(small->ok()) << small->message();
  RunAll();
  ASSERT_TRUE(first->ok()) << first->message();
  ASSERT_TRUE(second->ok()) << second->message();
  ASSERT_EQ(first->response.placements_size(), kMany);
  EXPECT_EQ(first->response.placements(kMany - 1).key_index(), kMany - 1u);
  EXPECT_EQ(first->response.SerializeAsString(), second->response.SerializeAsString());
  const auto more = AddKeys(Batch(sessions[0], 1, Many("more")));
  RunAll();
  ASSERT_TRUE(more->ok()) << more->message();
  EXPECT_EQ(more->response.placements(0).key_index(), kMany + 0u);
}

// Its chunks are placed, laid out and allocated one by one.
TEST_F(LongKeysTest, AKeyOfManyChunksIsNotBuiltUnderTheLock) {
  options.memory_bytes_max = 256 << 20;
  const std::string session = Enter(0, 1);
  const auto large = AddKeys(Batch(session, 0, {Key("large", 1'000'000)}));
  Settle();
  EXPECT_EQ(background.pieces.size(), 1u);
  EXPECT_FALSE(large->answered());
  RunAll();
  ASSERT_TRUE(large->ok()) << large->message();
  ASSERT_EQ(large->response.placements_size(), 1);
  EXPECT_GT(large->response.placements(0).chunk_bins_size(), 3000);
}

// Each batch alone would be small, but one turn answers all ranks.
TEST_F(LongKeysTest, AllRanksOfATurnShareItsBudget) {
  constexpr int kRanks = 8;
  std::vector<v1::KeySpec> keys = Many();
  keys.resize(40);
  std::vector<std::shared_ptr<Call<v1::AddKeysResponse>>> calls;
  for (const std::string& session : EnterAll(kRanks)) {
    control().turns().Begin();
    calls.push_back(AddKeys(Batch(session, 0, keys)));
    EXPECT_LE(control().turns().units(), TurnBudget().at_once);
  }
  for (const auto& core : cores) core->Run();
  control().Poll();
  EXPECT_LE(control().turns().units(), TurnBudget().at_once);
  EXPECT_FALSE(background.pieces.empty());
  RunAll();
  for (const auto& call : calls) EXPECT_TRUE(call->ok()) << call->message();
}

TEST_F(LongKeysTest, ARefusedBatchLeavesNothingBehind) {
  const std::string session = Enter(0, 1);
  const std::uint64_t before = control().memory_bytes();
  std::vector<v1::KeySpec> keys = Many();
  keys.push_back(Key("key0", 3));
  const auto twice = AddKeys(Batch(session, 0, keys));
  RunAll();
  EXPECT_THAT(twice->message(), HasSubstr("key0 was already added"));
  EXPECT_EQ(control().memory_bytes(), before);
  const auto right = AddKeys(Batch(session, 0, Many()));
  RunAll();
  EXPECT_TRUE(right->ok()) << right->message();
  const auto again = AddKeys(Batch(session, 1, {Key("key7", 3)}));
  RunAll();
  EXPECT_THAT(again->message(), HasSubstr("key7 was already added"));
}

TEST_F(LongKeysTest, ADifferenceEndsTheJobByName) {
  const std::vector<std::string> sessions = EnterAll(2);
  AddKeys(Batch(sessions[0], 0, Many()));
  RunAll();
  std::vector<v1::KeySpec> keys = Many();
  keys[700].set_element_count(4);
  const auto second = AddKeys(Batch(sessions[1], 0, keys));
  RunAll();
  EXPECT_THAT(second->message(), HasSubstr("key 700"));
  ASSERT_NE(sinks[sessions[0]]->fault(), nullptr);
  EXPECT_EQ(sinks[sessions[0]]->fault()->code(), "keys_mismatch");
}

// The job may end at any step of a build: every call is answered, and all memory is free.
TEST_F(LongKeysTest, AJobMayEndWhileItsKeysAreBuilt) {
  for (int steps = 0; steps < 3; ++steps) {
    const std::vector<std::string> sessions = EnterAll(2);
    const auto first = AddKeys(Batch(sessions[0], 0, Many()));
    const auto second = AddKeys(Batch(sessions[1], 0, Many()));
    Settle();
    for (int i = 0; i < steps; ++i) ASSERT_TRUE(background.RunOne());
    Evict("digits");
    RunAll();
    EXPECT_TRUE(first->answered()) << "steps=" << steps;
    EXPECT_TRUE(second->answered()) << "steps=" << steps;
    EXPECT_FALSE(first->ok());
    Settle();
    EXPECT_EQ(control().memory_bytes(), 0u) << "steps=" << steps;
    EXPECT_EQ(control().job_count(), 0u);
  }
}

}  // namespace
}  // namespace phub::server
