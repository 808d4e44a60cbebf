// Another thread prefaults the memory that control lends: no call is answered before its pages
// exist, and other calls do not wait.
#include "tests/unit/server/control/control_fixture.h"
#include "tests/unit/server/control/fake_prefaulter.h"

namespace phub::server {
namespace {

using ::testing::HasSubstr;

class PrefaulterTest : public ControlTest {
 protected:
  void SetUp() override { control().host_memory().SetPrefaulter(taker); }
  std::uint64_t Reserved() { return GetServer({})->response.memory_bytes(); }
  void Evict(const std::string& job) {
    v1::EvictJobRequest request;
    request.set_job(job);
    EvictJob(request);
    Advance(10 * kSecond);
  }

  FakePrefaulter taker;
};

TEST_F(PrefaulterTest, ARankIsAnsweredOnceItsKeysHavePages) {
  const std::string session = Enter(0, 1);
  const auto call = AddKeys(Batch(session, 0, {Key("a", 1000)}));
  Settle();
  EXPECT_FALSE(call->answered());
  // Core loops must not know the keys yet: a worker that does not wait for the answer could push
  // them.
  for (const auto& core : cores) EXPECT_TRUE(core->Executed(Command::Kind::kAddKeys).empty());
  // Parameters and the optimizer's state. The accumulator's pages are allocated when it is used.
  EXPECT_EQ(taker.asked_bytes, 2 * 4032u);
  // Expect: another job makes progress.
  const std::string other = Enter(0, 1, "other");
  taker.SetAll(PrefaultState::kTaken);
  Settle();
  EXPECT_TRUE(call->ok());
}

TEST_F(PrefaulterTest, WhatTheSystemDoesNotGiveEndsThatJobOnly) {
  const std::string other = Enter(0, 1, "other");
  const std::vector<std::string> sessions = EnterAll(2);
  const auto first = AddKeys(Batch(sessions[0], 0, {Key("a", 1000)}));
  const auto second = AddKeys(Batch(sessions[1], 0, {Key("a", 1000)}));
  Settle();
  taker.SetAll(PrefaultState::kRefused);
  Settle();
  for (const auto& call : {first, second}) {
    ASSERT_TRUE(call->answered());
    EXPECT_THAT(call->message(), HasSubstr("phubd could not allocate memory"));
  }
  const v1::Fault* const fault = sinks[sessions[1]]->fault();
  ASSERT_NE(fault, nullptr);
  EXPECT_EQ(fault->code(), "out_of_memory");
  EXPECT_EQ(sinks[other]->fault(), nullptr);
}

// The other ranks' keys are complete.
TEST_F(PrefaulterTest, ARanksOwnMemoryIsRefusedToThatRank) {
  control().host_memory().SetSharedMemoryEndpoint("phub-0123", "boot-1");
  const std::vector<std::string> sessions = EnterAll(2);
  v1::AddKeysRequest wanted = Batch(sessions[0], 0, {Key("a", 1000)});
  wanted.set_shared_bytes(8192);
  const auto first = AddKeys(wanted);
  ASSERT_EQ(taker.flags.size(), 2u);
  const auto second = AddKeys(Batch(sessions[1], 0, {Key("a", 1000)}));
  taker.flags[0]->store(PrefaultState::kTaken);
  taker.flags[1]->store(PrefaultState::kRefused);
  Settle();
  ASSERT_TRUE(first->answered());
  EXPECT_EQ(first->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(second->ok()) << second->message();
  EXPECT_EQ(sinks[sessions[1]]->fault(), nullptr);
}

TEST_F(PrefaulterTest, MemoryIsItsTenantsUntilItWasGivenBack) {
  const std::uint64_t before = Reserved();
  const std::string session = Enter(0, 1);
  AddKeys(Batch(session, 0, {Key("a", 1000)}));
  taker.SetAll(PrefaultState::kTaken);
  Settle();
  EXPECT_GT(Reserved(), before);
  Evict("digits");
  ASSERT_NE(taker.freed, nullptr);
  EXPECT_GT(taker.owned(), 0u);
  EXPECT_GT(Reserved(), before);
  taker.unwanted.reset();
  EXPECT_EQ(taker.owned(), 0u) << "control kept some";
  taker.freed->store(true);
  Settle();
  EXPECT_EQ(Reserved(), before);
}

// A job that ends while its pages are being allocated.
TEST_F(PrefaulterTest, NobodyIsAnsweredForAJobThatEnded) {
  const std::string session = Enter(0, 1);
  const auto call = AddKeys(Batch(session, 0, {Key("a", 1000)}));
  Settle();
  Evict("digits");
  ASSERT_TRUE(call->answered());
  EXPECT_FALSE(call->ok());
  taker.unwanted.reset();
  EXPECT_EQ(taker.owned(), 0u);
  taker.SetAll(PrefaultState::kTaken);
  Settle();
}

}  // namespace
}  // namespace phub::server
