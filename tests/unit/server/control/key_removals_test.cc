// RemoveKeys: what is returned, who is waited for, what is refused, and how ranks disagree.
#include "tests/unit/server/control/control_fixture.h"
#include "tests/unit/server/control/fake_prefaulter.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class KeyRemovalsTest : public ControlTest {
 protected:
  static v1::KeySpec Collective(const std::string& name, std::uint64_t elements = 1000) {
    v1::KeySpec key = Key(name, elements);
    key.set_optimizer(v1::OPTIMIZER_NONE);
    key.clear_hyper_parameters();
    key.set_collective(true);
    return key;
  }
  static v1::RemoveKeysRequest RemovalOf(const std::string& session, std::uint32_t first_batch,
                                         std::uint32_t batches, std::uint32_t sequence = 0) {
    v1::RemoveKeysRequest request;
    request.set_session_id(session);
    request.set_first_batch(first_batch);
    request.set_batches(batches);
    request.set_sequence(sequence);
    return request;
  }
  void AddAll(std::uint32_t batch, const std::vector<v1::KeySpec>& keys, std::uint32_t removals = 0,
              std::uint64_t shared_bytes = 0) {
    for (const std::string& session : sessions) {
      v1::AddKeysRequest request = Batch(session, batch, keys);
      request.set_removals(removals);
      request.set_shared_bytes(shared_bytes);
      const auto call = AddKeys(request);
      Settle();
      ASSERT_TRUE(call->ok()) << call->message();
      last_added = call->response;
    }
  }
  void RemoveAll(std::uint32_t first_batch, std::uint32_t batches, std::uint32_t sequence) {
    std::vector<CallPtr<v1::RemoveKeysResponse>> calls;
    for (const std::string& session : sessions)
      calls.push_back(RemoveKeys(RemovalOf(session, first_batch, batches, sequence)));
    Settle();
    for (const auto& call : calls) ASSERT_TRUE(call->ok()) << call->message();
  }
  std::uint32_t KeyCount() {
    v1::GetJobRequest request;
    request.set_job("digits");
    const auto call = GetJob(request);
    Settle();
    EXPECT_TRUE(call->ok()) << call->message();
    return call->response.key_count();
  }
  void Start(std::uint32_t ranks) { sessions = EnterAll(ranks); }

  std::vector<std::string> sessions;
  v1::AddKeysResponse last_added;
};

TEST_F(KeyRemovalsTest, ALoopOfAddAndRemoveHoldsNothing) {
  options.memory_bytes_max = 256 << 20;
  control().host_memory().SetSharedMemoryEndpoint("phub-0123", "boot-1");
  control().tenants().SetTenant({.name = kDefaultTenant, .quota = {.keys = 4}});
  Start(2);
  AddAll(0, {Collective("stays")}, 0, 4096);
  const std::uint64_t before = control().memory_bytes();
  std::string placed;
  for (std::uint32_t i = 0; i < 5; ++i) {
    AddAll(1, {Collective("a", 5000), Collective("b", 3)}, i, 1 << 20);
    AddAll(2, {Collective("c", 77)}, i, 4096);
    EXPECT_EQ(last_added.placements(0).key_index(), 3u);
    if (placed.empty()) placed = last_added.placements(0).SerializeAsString();
    EXPECT_EQ(last_added.placements(0).SerializeAsString(), placed) << i;
    EXPECT_GT(control().memory_bytes(), before + (2 << 20));
    RemoveAll(1, 3, i);
    EXPECT_EQ(control().memory_bytes(), before) << i;
    EXPECT_EQ(KeyCount(), 1u) << i;
    control().CheckInvariants();
  }
  EXPECT_EQ(Counter("phub_keys_removed_total"), 15u);
  EXPECT_EQ(Counter("phub_key_removals_total"), 5u);
  for (const std::string& session : sessions) Leave(session);
  Settle();
  EXPECT_EQ(control().memory_bytes(), 0u);
}

TEST_F(KeyRemovalsTest, WaitsForEveryRankAndForEveryCore) {
  Start(2);
  AddAll(0, {Collective("a")});
  cores[1]->keeps_keys = true;
  const auto first = RemoveKeys(RemovalOf(sessions[0], 0, 1));
  Settle();
  EXPECT_FALSE(first->answered());
  EXPECT_TRUE(cores[0]->Executed(Command::Kind::kRemoveKeys).empty());
  const auto second = RemoveKeys(RemovalOf(sessions[1], 0, 1));
  Settle();
  const auto commands = cores[1]->Executed(Command::Kind::kRemoveKeys);
  ASSERT_EQ(commands.size(), 1u);
  EXPECT_FALSE(first->answered() || second->answered());
  cores[1]->Emit({.kind = Event::Kind::kKeysRemoved,
                  .shard = commands[0].shard,
                  .removal = commands[0].removal});
  Settle();
  EXPECT_TRUE(first->ok() && second->ok());
}

TEST_F(KeyRemovalsTest, MemoryIsChargedUntilItIsFreed) {
  FakePrefaulter pages;
  control().host_memory().SetPrefaulter(pages);
  Start(1);
  const std::uint64_t before = control().memory_bytes();
  const auto added = AddKeys(Batch(sessions[0], 0, {Collective("a")}));
  pages.SetAll(PrefaultState::kTaken);
  Settle();
  ASSERT_TRUE(added->ok());
  const auto call = RemoveKeys(RemovalOf(sessions[0], 0, 1));
  Settle();
  EXPECT_FALSE(call->answered());
  EXPECT_GT(control().memory_bytes(), before);
  ASSERT_NE(pages.freed, nullptr);
  pages.freed->store(true);
  Settle();
  EXPECT_TRUE(call->ok());
  EXPECT_EQ(control().memory_bytes(), before);
}

TEST_F(KeyRemovalsTest, ARepeatedCallSucceedsAndALateAddIsRefused) {
  Start(1);
  AddAll(0, {Collective("a")});
  RemoveAll(0, 1, 0);
  EXPECT_TRUE(RemoveKeys(RemovalOf(sessions[0], 0, 1, 0))->ok());
  AddAll(0, {Collective("b")}, 1);
  // Expect: a call of before the removal does not touch the batch that has its number now.
  const auto late = AddKeys(Batch(sessions[0], 0, {Collective("a")}));
  Settle();
  EXPECT_EQ(late->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(late->message(), AllOf(HasSubstr("rank 0"), HasSubstr("0 calls of RemoveKeys"),
                                     HasSubstr("completed 1")));
  EXPECT_EQ(FaultAt(sessions[0]), nullptr);
}

TEST_F(KeyRemovalsTest, RanksThatRemoveDifferentKeysFailTheJobWithBothSides) {
  Start(2);
  AddAll(0, {Collective("a")});
  AddAll(1, {Collective("b"), Collective("c")});
  RemoveKeys(RemovalOf(sessions[0], 1, 2));
  RemoveKeys(RemovalOf(sessions[1], 0, 2));
  Settle();
  ASSERT_NE(FaultAt(sessions[0]), nullptr);
  EXPECT_EQ(FaultAt(sessions[0])->code(), "keys_mismatch");
  EXPECT_THAT(FaultAt(sessions[0])->message(),
              HasSubstr("rank 0 (node0) called RemoveKeys of keys b, c where rank 1 (node1) called "
                        "RemoveKeys of keys a, b, c"));
}

TEST_F(KeyRemovalsTest, ARankThatAddsWhereAnotherRemovesFailsTheJobInBothOrders) {
  for (const bool adds_first : {false, true}) {
    SCOPED_TRACE(adds_first);
    sessions = EnterAll(2, adds_first ? "one" : "two");
    AddAll(0, {Collective("a")});
    const auto add = [&] { AddKeys(Batch(sessions[1], 1, {Collective("x")})); };
    if (adds_first) add();
    RemoveKeys(RemovalOf(sessions[0], 0, 1));
    if (!adds_first) add();
    Settle();
    ASSERT_NE(FaultAt(sessions[1]), nullptr);
    EXPECT_THAT(FaultAt(sessions[1])->message(),
                AllOf(HasSubstr("rank 0 (node0) called RemoveKeys of key a"),
                      Not(HasSubstr("a, x")), HasSubstr("rank 1 (node1) called AddKeys of key x")));
  }
}

TEST_F(KeyRemovalsTest, ALateRankMayStillAddTheKeysThatOthersRemove) {
  Start(2);
  const auto early = AddKeys(Batch(sessions[0], 0, {Collective("a")}));
  Settle();
  ASSERT_TRUE(early->ok());
  const auto first = RemoveKeys(RemovalOf(sessions[0], 0, 1));
  const auto late = AddKeys(Batch(sessions[1], 0, {Collective("a")}));
  Settle();
  ASSERT_TRUE(late->ok()) << late->message();
  EXPECT_FALSE(first->answered());
  const auto second = RemoveKeys(RemovalOf(sessions[1], 0, 1));
  Settle();
  EXPECT_TRUE(first->ok() && second->ok());
}

TEST_F(KeyRemovalsTest, RefusesWhatCannotBeRemovedAndSaysWhy) {
  v1::JoinRequest restart = JoinOf(0, 1, "restarts");
  restart.mutable_options()->set_on_loss(v1::LOSS_POLICY_WAIT);
  restart.mutable_options()->set_restart(true);
  const std::string restarts = EnterAs(restart);
  AddKeys(Batch(restarts, 0, {Key("w", 10)}));
  Settle();
  EXPECT_THAT(RemoveKeys(RemovalOf(restarts, 0, 1))->message(), HasSubstr("restart=true"));
  Start(1);
  AddAll(0, {Collective("a"), Key("w", 10)});
  EXPECT_THAT(RemoveKeys(RemovalOf(sessions[0], 0, 1))->message(),
              HasSubstr("key w of job digits is not collective"));
  EXPECT_THAT(RemoveKeys(RemovalOf(sessions[0], 1, 1))->message(),
              HasSubstr("from batch 1 on, as if it had 1 batches of keys, but it has 1"));
  EXPECT_THAT(RemoveKeys(RemovalOf(sessions[0], 0, 2))->message(),
              HasSubstr("as if it had 2 batches of keys, but it has 1"));
  EXPECT_THAT(RemoveKeys(RemovalOf(sessions[0], 0, 1, 1))->message(), HasSubstr("sequence 0"));
  EXPECT_EQ(Counter("phub_key_removals_refused_total"), 5u);
  EXPECT_EQ(FaultAt(sessions[0]), nullptr);
  // Expect: the job goes on.
  AddAll(1, {Collective("b")});
  RemoveAll(1, 2, 0);
}

TEST_F(KeyRemovalsTest, IsRefusedOnceARankHasLeft) {
  Start(2);
  AddAll(0, {Collective("a")});
  const auto waits = RemoveKeys(RemovalOf(sessions[0], 0, 1));
  Leave(sessions[1]);
  Settle();
  EXPECT_EQ(waits->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(waits->message(), HasSubstr("rank 1 (node1"));
  const auto later = RemoveKeys(RemovalOf(sessions[0], 0, 1));
  EXPECT_THAT(later->message(), HasSubstr("has left"));
}

TEST_F(KeyRemovalsTest, EndsWithItsJob) {
  Start(2);
  AddAll(0, {Collective("a")});
  cores[0]->keeps_keys = true;
  const auto first = RemoveKeys(RemovalOf(sessions[0], 0, 1));
  const auto second = RemoveKeys(RemovalOf(sessions[1], 0, 1));
  Settle();
  Leave(sessions[0], "job digits failed: elsewhere");
  Advance(10 * kSecond);
  EXPECT_EQ(first->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(second->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(control().memory_bytes(), 0u);
}

TEST_F(KeyRemovalsTest, WaitsForASnapshotAndForCallsOfOtherThreads) {
  Start(1);
  AddAll(0, {Key("w", 100)});
  AddAll(1, {Collective("a")});
  v1::BeginSnapshotRequest snapshot;
  snapshot.set_job("digits");
  for (std::uint32_t key = 0; key < 2; ++key) snapshot.add_targets()->set_key_index(key);
  const auto begun = BeginSnapshot(snapshot);
  const auto call = RemoveKeys(RemovalOf(sessions[0], 1, 2));
  Settle();
  EXPECT_FALSE(call->answered());
  Advance(300 * kSecond);  // the core loops never answer, so the snapshot is given up
  EXPECT_TRUE(begun->answered());
  EXPECT_TRUE(call->ok()) << call->message();
}

}  // namespace
}  // namespace phub::server
