// Keys of groups: who agrees with whom, what core loops get, what a removal returns, and refusals.
#include "server/core/round_trace.h"
#include "tests/unit/server/control/control_fixture.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class GroupsTest : public ControlTest {
 protected:
  static v1::KeySpec Collective(const std::string& name, std::uint64_t elements = 1000) {
    v1::KeySpec key = Key(name, elements);
    key.set_optimizer(v1::OPTIMIZER_NONE);
    key.clear_hyper_parameters();
    key.set_collective(true);
    return key;
  }
  v1::AddKeysRequest RequestOf(std::uint32_t rank, const std::vector<std::uint32_t>& ranks,
                               const std::vector<v1::KeySpec>& keys, std::uint32_t batch = 0,
                               const std::string& name = "pair") {
    v1::AddKeysRequest request = Batch(sessions[rank], batch, keys);
    request.mutable_group()->set_name(name);
    for (const std::uint32_t each : ranks) request.mutable_group()->add_ranks(each);
    return request;
  }
  CallPtr<v1::AddKeysResponse> Add(std::uint32_t rank, const std::vector<std::uint32_t>& ranks,
                                   const std::vector<v1::KeySpec>& keys, std::uint32_t batch = 0,
                                   const std::string& name = "pair") {
    const auto call = AddKeys(RequestOf(rank, ranks, keys, batch, name));
    Settle();
    return call;
  }
  // Every member adds the keys. Returns the group's id.
  std::uint64_t AddAll(const std::vector<std::uint32_t>& ranks,
                       const std::vector<v1::KeySpec>& keys, std::uint32_t batch = 0,
                       const std::string& name = "pair") {
    std::uint64_t id = 0;
    for (const std::uint32_t rank : ranks) {
      const auto call = Add(rank, ranks, keys, batch, name);
      EXPECT_TRUE(call->ok()) << call->message();
      id = call->response.group_id();
      last_added = call->response;
    }
    return id;
  }
  CallPtr<v1::RemoveKeysResponse> Remove(std::uint32_t rank, std::uint64_t id) {
    v1::RemoveKeysRequest request;
    request.set_session_id(sessions[rank]);
    request.set_group_id(id);
    const auto call = RemoveKeys(request);
    Settle();
    return call;
  }
  void RemoveAll(const std::vector<std::uint32_t>& ranks, std::uint64_t id) {
    std::vector<CallPtr<v1::RemoveKeysResponse>> calls;
    for (const std::uint32_t rank : ranks) calls.push_back(Remove(rank, id));
    for (const auto& call : calls) ASSERT_TRUE(call->ok()) << call->message();
  }
  void Start(std::uint32_t ranks) { sessions = EnterAll(ranks); }

  std::vector<std::string> sessions;
  v1::AddKeysResponse last_added;
};

TEST_F(GroupsTest, MembersAgreeWithoutOtherRanks) {
  Start(4);
  AddAll({1, 3}, {Collective("a"), Collective("b", 3)});
  EXPECT_EQ(last_added.placements(0).key_index(), kGroupKeysFirst);
  EXPECT_EQ(last_added.placements(1).key_index(), kGroupKeysFirst + 1);
  const auto batches = cores[0]->Executed(Command::Kind::kAddKeys);
  ASSERT_EQ(batches.size(), 1u);
  const ShardKey& key = batches[0].batch->keys[0];
  ASSERT_NE(key.members, nullptr);
  EXPECT_THAT(key.members->ranks(), ElementsAre(Rank{1}, Rank{3}));
  // Expect: the ranks that are not members add keys of the whole job as if there were no group.
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    const auto call = AddKeys(Batch(sessions[rank], 0, {Collective("a")}));
    Settle();
    ASSERT_TRUE(call->ok()) << call->message();
    EXPECT_EQ(call->response.placements(0).key_index(), 0u);
  }
  control().CheckInvariants();
}

TEST_F(GroupsTest, StallsHaveTheMembersThatHavePushedAndThePoolsOperation) {
  Start(5);
  AddAll({1, 3, 4}, {Collective("a")});
  cores[1]->fill_stalls = [&](StallReport& report) {
    StallReport::Entry& entry = report.entries[report.count++];
    entry.key = KeyIndex{kGroupKeysFirst};
    entry.iteration = Iteration{2};
    entry.pooled = true;
    entry.pool_operation = 9;
    entry.missing[0] = 1 << 3;
    entry.chunks_waiting = 1;
    entry.since = clock.now;
  };
  v1::ListStallsRequest request;
  request.set_job("digits");
  const auto call = ListStalls(request);
  Settle();
  ASSERT_TRUE(call->ok()) << call->message();
  ASSERT_EQ(call->response.stalls_size(), 1);
  const v1::Stall& stall = call->response.stalls(0);
  EXPECT_EQ(stall.key(), "a");
  EXPECT_THAT(stall.pushed_by(), ElementsAre(1u, 4u));
  EXPECT_EQ(stall.waiting_for(0).rank(), 3u);
  EXPECT_TRUE(stall.pooled());
  EXPECT_EQ(stall.pool_operation(), 9u);
}

TEST_F(GroupsTest, TracesNameTheirKeysAndSayWhatARoundOfAPoolIs) {
  Start(2);
  std::uint64_t id = AddAll({0, 1}, {Collective("a")});
  const auto ask = [&](std::uint64_t trace) {
    v1::TraceJobRequest request;
    request.set_job("digits");
    request.set_trace(trace);
    auto [call, answer] = Expect<v1::TraceJobResponse>();
    control().job_traces().TraceJob(request, answer);
    Settle();
    EXPECT_TRUE(call->ok()) << call->message();
    return call->response;
  };
  ask(0);
  RoundTrace* const trace = cores[0]->Executed(Command::Kind::kTraceRounds).back().trace;
  ASSERT_NE(trace, nullptr);
  TracedSpan span{.key = KeyIndex{kGroupKeysFirst}, .work = TracedSpan::Work::kGather};
  trace->Add(span);
  const v1::TraceJobResponse ordinary = ask(1);
  ASSERT_EQ(ordinary.keys_size(), 1);
  EXPECT_EQ(ordinary.keys(0).name(), "a");
  EXPECT_FALSE(ordinary.spans(0).has_pooled());
  // Another group has its number.
  RemoveAll({0, 1}, id);
  AddAll({0, 1}, {Collective("b", 100'000)}, 0, "other");
  span.operation = wire::RoundOperation::kPool;
  span.pool = {.type = numeric::ElementType::kF64,
               .round = {.elements = 20'000, .sequence = 5 | 2u << wire::kPoolSequenceBits}};
  trace->Add(span);
  trace->Add(span);
  const v1::TraceJobResponse pooled = ask(1);
  ASSERT_EQ(pooled.keys_size(), 1);
  EXPECT_EQ(pooled.keys(0).name(), "b");
  ASSERT_EQ(pooled.spans_size(), 2);
  const v1::PooledRound& round = pooled.spans(0).pooled();
  EXPECT_EQ(round.elements(), 20'000u);
  EXPECT_EQ(round.chunks(), 157u);  // of 1 KiB
  EXPECT_EQ(round.type(), static_cast<std::uint32_t>(numeric::ElementType::kF64));
  EXPECT_EQ(round.sequence(), 5u);
  EXPECT_EQ(round.rounds_left(), 2u);
}

// Expect: a bound on the groups that a job may take in answers and in metrics. The others are
// counted.
TEST_F(GroupsTest, AreDescribedUpToABound) {
  constexpr std::uint32_t kCount = 260;
  Start(2);
  for (std::uint32_t i = 0; i < kCount; ++i)
    AddAll({0, 1}, {Collective("a", 1)}, 0, fmt::format("group{}", i));
  v1::GetJobRequest request;
  request.set_job("digits");
  const v1::JobInfo info = GetJob(request)->response;
  ASSERT_EQ(info.groups_size(), 256);
  EXPECT_EQ(info.groups_omitted(), kCount - 256);
  EXPECT_EQ(info.groups(255).name(), "group255");
  EXPECT_EQ(info.groups(255).id(), 256u);
  EXPECT_EQ(info.groups(0).ranks(), "0, 1");
  EXPECT_EQ(info.groups(0).key_count(), 1u);
  EXPECT_THAT(info.groups(0).priority_classes(), ElementsAre("data"));
  Metrics::Sampling sampling;
  do control().turns().Begin();
  while (!control().metrics().SampleMore(sampling));
  EXPECT_EQ(sampling.sample.groups.size(), kGroupsSampledMax);
  EXPECT_EQ(sampling.sample.groups_omitted, kCount - kGroupsSampledMax);
}

TEST_F(GroupsTest, GroupsOfOneNameMayExistNextToEachOther) {
  Start(4);
  const std::uint64_t first = AddAll({0, 1}, {Collective("a")});
  const std::uint64_t second = AddAll({2, 3}, {Collective("a")});
  EXPECT_NE(first, second);
  EXPECT_EQ(last_added.placements(0).key_index(), kGroupKeysFirst + 1);
}

TEST_F(GroupsTest, MembersThatDisagreeAboutTheRanksAreBothNamed) {
  Start(3);
  ASSERT_TRUE(Add(0, {0, 1}, {Collective("a")})->ok());
  const auto call = Add(2, {0, 2}, {Collective("a")});
  EXPECT_THAT(call->message(), AllOf(HasSubstr("rank 0 (node0) made group pair of ranks 0, 1"),
                                     HasSubstr("rank 2 (node2) made it of ranks 0, 2")));
  ASSERT_NE(FaultAt(sessions[1]), nullptr);
  EXPECT_EQ(FaultAt(sessions[1])->code(), "keys_mismatch");
}

TEST_F(GroupsTest, MembersThatAddOtherKeysAreBothNamed) {
  Start(3);
  ASSERT_TRUE(Add(0, {0, 2}, {Collective("a")})->ok());
  const auto call = Add(2, {0, 2}, {Collective("a", 999)});
  EXPECT_THAT(call->message(),
              AllOf(HasSubstr("group pair (ranks 0, 2)"), HasSubstr("rank 0 (node0)"),
                    HasSubstr("rank 2 (node2)"), HasSubstr("1000"), HasSubstr("999")));
}

TEST_F(GroupsTest, WrongCallsAreRefusedAndHarmNobody) {
  Start(3);
  const auto expect = [&](const v1::AddKeysRequest& request, const std::string& part) {
    const auto call = AddKeys(request);
    Settle();
    EXPECT_EQ(call->code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(call->message(), HasSubstr(part));
  };
  expect(RequestOf(1, {0, 2}, {Collective("a")}), "rank 1 (node1) is not a member of group pair");
  expect(RequestOf(0, {0, 3}, {Collective("a")}), "less than world_size 3");
  expect(RequestOf(0, {2, 0}, {Collective("a")}), "must be ascending");
  expect(RequestOf(0, {0, 0, 1}, {Collective("a")}), "must be ascending");
  expect(RequestOf(0, {}, {Collective("a")}), "not a member");
  expect(RequestOf(0, {0, 1}, {Collective("a")}, 0, ""), "a name has 1 to");
  expect(RequestOf(0, {0, 1}, {Collective("a")}, 1), "which has none");
  expect(RequestOf(0, {0, 1}, {}), "no keys");
  v1::KeySpec ordinary = Collective("a");
  ordinary.set_collective(false);
  expect(RequestOf(0, {0, 1}, {ordinary}), "keys of groups must be collective");
  EXPECT_EQ(Counter("phub_keys_refused_invalid_total"), 9u);
  AddAll({0, 1}, {Collective("a")});
}

TEST_F(GroupsTest, JobsThatCannotHaveGroupsSaySo) {
  v1::JoinRequest join = JoinOf(0, 1);
  join.mutable_options()->set_sum(v1::SUM_FIXED);
  sessions = {EnterAs(join)};
  const auto call = Add(0, {0}, {Collective("a")});
  EXPECT_EQ(call->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(call->message(), HasSubstr("sum=fixed"));
}

TEST_F(GroupsTest, ALoopOfMakingAndRemovingHoldsNothing) {
  control().tenants().SetTenant({.name = kDefaultTenant, .quota = {.keys = 5}});
  Start(4);
  for (const std::string& session : sessions) {
    const auto call = AddKeys(Batch(session, 0, {Collective("stays")}));
    Settle();
    ASSERT_TRUE(call->ok());
  }
  const std::uint64_t other = AddAll({2, 3}, {Collective("a")});
  const std::uint64_t before = control().memory_bytes();
  std::string placed;
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t id = AddAll({0, 1}, {Collective("a", 5000), Collective("b", 3)});
    AddAll({0, 1}, {Collective("c", 77)}, 1);
    const std::string now = last_added.placements(0).SerializeAsString();
    if (placed.empty()) placed = now;
    ASSERT_EQ(now, placed) << i;
    ASSERT_GT(control().memory_bytes(), before);
    RemoveAll({0, 1}, id);
    ASSERT_EQ(control().memory_bytes(), before) << i;
    control().CheckInvariants();
  }
  RemoveAll({2, 3}, other);
  EXPECT_EQ(Counter("phub_keys_removed_total"), 601u);
  for (const std::string& session : sessions) Leave(session);
  Settle();
  EXPECT_EQ(control().memory_bytes(), 0u);
}

TEST_F(GroupsTest, KeysCountAgainstTheQuotaOfTheTenant) {
  control().tenants().SetTenant({.name = kDefaultTenant, .quota = {.keys = 2}});
  Start(2);
  AddAll({0, 1}, {Collective("a"), Collective("b")});
  const auto call = Add(0, {0, 1}, {Collective("c")}, 1);
  EXPECT_EQ(call->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(call->message(), HasSubstr("keys"));
}

TEST_F(GroupsTest, ARemovalWaitsForMembersOnly) {
  Start(3);
  const std::uint64_t id = AddAll({0, 2}, {Collective("a")});
  const auto first = Remove(0, id);
  EXPECT_FALSE(first->answered());
  const auto stranger = Remove(1, id);
  EXPECT_THAT(stranger->message(), HasSubstr("rank 1 (node1) is not a member of group pair"));
  const auto second = Remove(2, id);
  EXPECT_TRUE(first->ok() && second->ok());
  EXPECT_TRUE(Remove(2, id)->ok());  // a call that is repeated after its answer was lost
  EXPECT_THAT(Remove(2, id + 1)->message(), HasSubstr("never had"));
}

TEST_F(GroupsTest, RemovalsOfTwoGroupsAreUnlinkedOneAfterTheOther) {
  Start(4);
  const std::uint64_t a = AddAll({0, 1}, {Collective("a")});
  const std::uint64_t b = AddAll({2, 3}, {Collective("a")});
  cores[1]->keeps_keys = true;
  (void)Remove(0, a);
  const auto first = Remove(1, a);
  (void)Remove(2, b);
  const auto second = Remove(3, b);
  auto commands = cores[1]->Executed(Command::Kind::kRemoveKeys);
  ASSERT_EQ(commands.size(), 1u);
  const auto finish = [&](const Command& command) {
    cores[1]->Emit(
        {.kind = Event::Kind::kKeysRemoved, .shard = command.shard, .removal = command.removal});
    Settle();
  };
  finish(commands[0]);
  EXPECT_TRUE(first->ok());
  EXPECT_FALSE(second->answered());
  commands = cores[1]->Executed(Command::Kind::kRemoveKeys);
  ASSERT_EQ(commands.size(), 2u);
  finish(commands[1]);
  EXPECT_TRUE(second->ok());
}

TEST_F(GroupsTest, AMemberThatAddsWhereAnotherRemovesFailsTheJob) {
  Start(2);
  const std::uint64_t id = AddAll({0, 1}, {Collective("a")});
  const auto removal = Remove(0, id);
  const auto call = Add(1, {0, 1}, {Collective("b")}, 1);
  EXPECT_THAT(call->message(), AllOf(HasSubstr("rank 0 (node0) removes group pair"),
                                     HasSubstr("rank 1 (node1) adds keys")));
  EXPECT_TRUE(removal->answered() && !removal->ok());
}

TEST_F(GroupsTest, AMemberThatLeftCannotRemove) {
  Start(3);
  const std::uint64_t id = AddAll({0, 2}, {Collective("a")});
  const auto call = Remove(0, id);
  Leave(sessions[2]);
  Settle();
  EXPECT_EQ(call->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(call->message(), HasSubstr("rank 2 (node2, pid 4702) has left"));
}

TEST_F(GroupsTest, FaultsNameTheGroup) {
  Start(2);
  AddAll({0, 1}, {Collective("a of group pair")});
  const Command added = cores[0]->Executed(Command::Kind::kAddKeys).back();
  cores[0]->Emit({.kind = Event::Kind::kFault,
                  .code = FaultCode::kNotMember,
                  .source = Rank{1},
                  .key = KeyIndex{kGroupKeysFirst},
                  .iteration = Iteration{3},
                  .shard = added.shard});
  Settle();
  ASSERT_NE(FaultAt(sessions[0]), nullptr);
  EXPECT_THAT(FaultAt(sessions[0])->message(), AllOf(HasSubstr("rank 1"), HasSubstr("not a member"),
                                                     HasSubstr("key a of group pair iteration 3")));
}

TEST_F(GroupsTest, CheckpointsOfJobsWithGroupsAreRefused) {
  Start(1);
  AddKeysOfAll(sessions, {Key("fc1", 100)});
  const std::uint64_t id = AddAll({0}, {Collective("a")});
  RemoveAll({0}, id);
  v1::BeginSnapshotRequest request;
  request.set_job("digits");
  const auto call = BeginSnapshot(request);
  Settle();
  EXPECT_THAT(call->message(), HasSubstr("has or had groups"));
}

}  // namespace
}  // namespace phub::server
