// Groups in jobs that span racks: who knows of them, how keys are placed next to them, what is
// charged, and what is refused.
#include "server/control/racks/rack_groups.h"

#include "server/core/exchange/shard_exchange.h"
#include "tests/unit/server/control/rack_groups_fixture.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(RackGroupsTest, AGroupInsideARackIsKnownThereOnly) {
  EnterAll();
  AddAll({2, 3}, {Collective("a")});
  const auto batches = AddedAt(1);
  ASSERT_EQ(batches.size(), 1u);
  const ShardKey& key = batches[0].batch->keys[0];
  // Expect: core loops number the ranks of their rack from 0.
  ASSERT_NE(key.members, nullptr);
  EXPECT_THAT(key.members->ranks(), ElementsAre(Rank{0}, Rank{1}));
  EXPECT_EQ(batches[0].batch->exchange, nullptr);
  EXPECT_EQ(batches[0].batch->chunks[0].exchange, nullptr);
  EXPECT_TRUE(AddedAt(0).empty());
  EXPECT_TRUE(AddedAt(2).empty());
}

// Expect: a rack with groups gives later chunks of the job other numbers, and places them alike.
TEST_F(RackGroupsTest, KeysOfTheJobArePlacedAsIfThereWereNoGroups) {
  EnterAll();
  AddToJob(0, RackNode::Key("first", 100));
  const std::uint64_t id = AddAll({2, 3}, {Collective("a", 1'000'000)});
  AddAll({4}, {Collective("b", 70'000)});
  added_.clear();
  AddToJob(1, RackNode::Key("second", 1'000'000));
  ASSERT_EQ(added_.size(), kRanks);
  const v1::KeyPlacement& first = added_[0]->response.placements(0);
  const v1::KeyPlacement& next = added_[2]->response.placements(0);
  EXPECT_EQ(first.SerializeAsString(), added_[1]->response.placements(0).SerializeAsString());
  EXPECT_TRUE(std::ranges::equal(first.chunk_bins(), next.chunk_bins()));
  EXPECT_GT(next.first_chunks(0), first.first_chunks(0));
  // Expect: what the group held is returned, and the rack places keys of groups as before.
  std::vector<CallPtr<v1::RemoveKeysResponse>> removals;
  for (const std::uint32_t rank : {2u, 3u}) {
    v1::RemoveKeysRequest request;
    request.set_session_id(sessions[rank]);
    request.set_group_id(id);
    removals.push_back(NodeOf(rank).RemoveKeys(request));
    Settle();
  }
  for (const auto& call : removals) EXPECT_TRUE(call->ok()) << call->message();
  node(1).control().CheckInvariants();
  const auto again = Add(3, {2, 3}, {Collective("c", 1'000'000)});
  ASSERT_TRUE(again->ok()) << again->message();
  EXPECT_EQ(again->response.placements(0).key_index(), kGroupKeysFirst);
}

// A gather of the members of rack 1: core loops know senders by their numbers in the job.
TEST_F(RackGroupsTest, GathersAndPoolsWorkInsideARackAndNotAcrossRacks) {
  EnterAll();
  v1::KeySpec gathered = Collective("a");
  gathered.set_movement(v1::MOVEMENT_GATHER);
  AddAll({2, 3}, {gathered});
  const Command added = AddedAt(1)[0];
  EXPECT_EQ(added.batch->chunks.front().sender, Rank{2});
  EXPECT_EQ(added.batch->chunks.back().sender, Rank{3});
  const auto refused = NodeOf(0).AddKeys(RackNode::Batch(sessions[0], 0, {Collective("b")}));
  EXPECT_THAT(refused->message(),
              HasSubstr("key b: collective keys do not work in jobs that span racks, except in "
                        "groups"));
}

TEST_F(RackGroupsTest, AGroupOfSeveralRacksIsBuiltWhereItsMembersAre) {
  EnterAll();
  AddToJob(0, RackNode::Key("w", 100));
  // Expect: the call ends once the other racks have the keys, also if no rank there has called.
  node(2).cores[0]->stopped = true;
  const auto first = Add(1, {0, 1, 4}, {Collective("a")});
  EXPECT_FALSE(first->answered());
  node(2).cores[0]->stopped = false;
  Settle();
  ASSERT_TRUE(first->ok()) << first->message();
  EXPECT_TRUE(Add(4, {0, 1, 4}, {Collective("a")})->ok());
  EXPECT_TRUE(Add(0, {0, 1, 4}, {Collective("a")})->ok());
  ASSERT_EQ(AddedAt(0).size(), 2u);
  EXPECT_EQ(AddedAt(1).size(), 1u);
  ASSERT_EQ(AddedAt(2).size(), 2u);
  const KeyBatch& here = *AddedAt(0).back().batch;
  const KeyBatch& there = *AddedAt(2).back().batch;
  EXPECT_THAT(here.keys[0].members->ranks(), ElementsAre(Rank{0}, Rank{1}));
  EXPECT_THAT(there.keys[0].members->ranks(), ElementsAre(Rank{0}));
  for (const KeyBatch* const batch : {&here, &there}) {
    ASSERT_NE(batch->exchange, nullptr);
    EXPECT_EQ(batch->exchange->first_number, exchange::kGroupNumbersFirst);
    EXPECT_EQ(batch->exchange->chunks[0].rank_count, 3u);
    EXPECT_TRUE(batch->keys[0].members->HasInJob(Rank{4}));
    EXPECT_FALSE(batch->keys[0].members->HasInJob(Rank{2}));
  }
  // Expect: one of the two racks is the home, and they are each other's only neighbors.
  EXPECT_NE(here.chunks[0].is_home, there.chunks[0].is_home);
  EXPECT_EQ(here.exchange->plan->neighbors, exchange::RackBit(RackIndex{2}));
  EXPECT_EQ(there.exchange->plan->neighbors, exchange::RackBit(RackIndex{0}));
  // Expect: a second batch has the next numbers, and a second group those after it.
  EXPECT_TRUE(Add(4, {0, 1, 4}, {Collective("b")}, 1)->ok());
  EXPECT_TRUE(Add(3, {3, 5}, {Collective("a")}, 0, "other")->ok());
  EXPECT_EQ(AddedAt(0).back().batch->exchange->first_number, exchange::kGroupNumbersFirst + 4u);
  EXPECT_EQ(AddedAt(1).back().batch->exchange->first_number, exchange::kGroupNumbersFirst + 8u);
  for (std::uint32_t rack = 0; rack < kRacks; ++rack) node(rack).control().CheckInvariants();
  Leave({0, 1, 2, 3, 4, 5});
  ExpectNothingLeft();
}

TEST_F(RackGroupsTest, MembersInTwoRacksThatDisagreeAreNamedEverywhere) {
  EnterAll();
  const auto first = Add(1, {1, 4}, {Collective("a", 1000)});
  ASSERT_TRUE(first->ok()) << first->message();
  const auto other = Add(4, {1, 4}, {Collective("a", 999)});
  EXPECT_THAT(other->message(), AllOf(HasSubstr("group pair (ranks 1, 4)"), HasSubstr("rank 1"),
                                      HasSubstr("rank 4"), HasSubstr("999")));
  EXPECT_THAT(FaultOf(2), HasSubstr("keys_mismatch"));
}

// Both racks ask rack 0 before either has the batch.
TEST_F(RackGroupsTest, RacksThatAddOtherKeysAtTheSameTimeEndTheJob) {
  EnterAll();
  const auto request = [&](std::uint32_t rank, std::uint64_t elements) {
    return NodeOf(rank).AddKeys(RequestOf(rank, {2, 4}, {Collective("a", elements)}, 0));
  };
  const auto one = request(2, 10);
  const auto two = request(4, 11);
  Settle();
  EXPECT_TRUE(one->answered() && two->answered());
  EXPECT_THAT(FaultOf(0), AllOf(HasSubstr("keys_mismatch"), HasSubstr("11"), HasSubstr("pair")));
}

TEST_F(RackGroupsTest, RacksThatDisagreeAboutTheMembersAreNamed) {
  EnterAll();
  ASSERT_TRUE(Add(1, {1, 4}, {Collective("a")})->ok());
  const auto call = Add(2, {2, 4}, {Collective("a")});
  EXPECT_THAT(call->message(),
              AllOf(HasSubstr("rank 1"), HasSubstr("made group pair of ranks 1, 4"),
                    HasSubstr("rank 2 made it of ranks 2, 4")));
  EXPECT_THAT(FaultOf(5), HasSubstr("group pair"));
}

TEST_F(RackGroupsTest, AGroupOfARackAndOneOfSeveralWithItsNameAndRanksContradict) {
  EnterAll();
  AddAll({4, 5}, {Collective("a")});
  (void)Add(1, {1, 4}, {Collective("a")});
  EXPECT_THAT(FaultOf(0), AllOf(HasSubstr("rank 4 (node4) made group pair of ranks 4, 5"),
                                HasSubstr("rank 1 made it of ranks 1, 4")));
}

TEST_F(RackGroupsTest, WhatGroupsOfSeveralRacksCannotDoIsRefusedAndHarmsNobody) {
  EnterAll();
  for (int movement = v1::MOVEMENT_ALL_REDUCE + 1; movement < v1::Movement_ARRAYSIZE; ++movement) {
    v1::KeySpec key = Collective("a");
    key.set_movement(static_cast<v1::Movement>(movement));
    EXPECT_THAT(Add(1, {1, 4}, {key})->message(), HasSubstr("except in groups inside one rack"))
        << movement;
  }
  v1::KeySpec key = Collective("a");
  key.set_type(v1::ELEMENT_TYPE_U8);
  key.set_pooled(true);
  EXPECT_THAT(Add(1, {1, 4}, {key})->message(),
              HasSubstr("pooled keys do not work in groups that have members in several racks"));
  EXPECT_THAT(Add(2, {1, 3}, {Collective("a")})->message(),
              HasSubstr("rank 2 (node2) is not a member of group pair"));
  EXPECT_EQ(FaultOf(1), "");
}

TEST_F(RackGroupsTest, KeysThatRack0MayNotSendAreRefusedAndCounted) {
  EnterAll();
  ExpectRefused("not from rack 0", 1, 2, KeysFor({1, 4}));
  ExpectRefused("no such rank", 0, 2, KeysFor({1, 4, 9}));
  ExpectRefused("no member there", 0, 2, KeysFor({1, 3}));
  ExpectRefused("all in one rack", 0, 2, KeysFor({4, 5}));
  ExpectRefused("not ascending", 0, 2, KeysFor({4, 1}));
  ExpectRefused("a rank twice", 0, 2, KeysFor({1, 1, 4}));
  v1::PeerMessage message = KeysFor({1, 4});
  message.mutable_group_keys()->set_rank(2);
  ExpectRefused("added by a rank that is not a member", 0, 2, message);
  message = KeysFor({1, 4});
  message.mutable_group_keys()->set_number(0);
  ExpectRefused("no number", 0, 2, message);
  message = KeysFor({1, 4});
  message.mutable_group_keys()->add_first_chunks(0);
  ExpectRefused("more core loops than there are", 0, 2, message);
  // Expect: a plan that is not for the group's racks ends the job.
  message = KeysFor({1, 4});
  message.mutable_group_keys()->set_plan("{}");
  Say(0, 2, incarnation, message);
  Settle();
  EXPECT_THAT(FaultOf(4), HasSubstr("the plan of group pair is refused"));
}

TEST_F(RackGroupsTest, BatchesThatNoRackMayAskForAreRefusedAndCounted) {
  EnterAll();
  ExpectRefused("rank 4 is in rack 2", 1, 0, AskingFor({1, 4}, 4));
  ExpectRefused("only rack 0 is asked", 2, 1, AskingFor({1, 4}, 4));
  ExpectRefused("all in one rack", 2, 0, AskingFor({4, 5}, 4));
  ExpectRefused("not ascending", 2, 0, AskingFor({4, 1}, 4));
  v1::PeerMessage message = AskingFor({1, 4}, 4);
  message.mutable_group_asked()->clear_keys();
  ExpectRefused("no keys", 2, 0, message);
}

TEST_F(RackGroupsTest, ProgressOfGroupsThatCannotExistIsRefusedAndCounted) {
  EnterAll();
  v1::PeerMessage message;
  message.mutable_group_added()->set_number(0);
  ExpectRefused("no number", 2, 1, message);
  message.mutable_group_added()->set_number(kWideGroupsMax + 1);  // numbers are not used twice
  Say(2, 1, incarnation, message);
  Settle();
  EXPECT_EQ(RefusedAt(1), 1u);
}

// Rack 0 also checks the keys that another rack has checked.
TEST_F(RackGroupsTest, ARackThatAsksForKeysThatCannotBeAddedEndsTheJob) {
  EnterAll();
  v1::PeerMessage message = AskingFor({1, 4}, 4);
  message.mutable_group_asked()->mutable_keys(0)->set_movement(v1::MOVEMENT_SCATTER);
  Say(2, 0, incarnation, message);
  Settle();
  EXPECT_THAT(FaultOf(0), AllOf(HasSubstr("rank 4 added keys to group pair (ranks 1, 4) that "
                                          "cannot be added"),
                                HasSubstr("movement scatter does not work in jobs that span")));
}

TEST_F(RackGroupsTest, ABatchThatIsTooLargeToBeSentIsRefusedAndTheJobGoesOn) {
  EnterAll();
  constexpr std::size_t kBytesMax = 2'064'384;  // half of the limit of a message
  // A bundle. Each of its tensors adds one byte to the request.
  const auto of_bytes = [&](std::uint32_t batch, std::size_t bytes) {
    v1::KeySpec key = Collective("bundle" + std::to_string(batch), 2'000'000);
    for (std::uint64_t i = 0; i < key.element_count(); ++i) key.add_tensors(1);
    const std::size_t missing = bytes - RequestOf(1, {1, 4}, {key}, batch).ByteSizeLong();
    for (std::size_t i = 0; i < missing; ++i) key.add_tensors(1);
    key.set_element_count(key.element_count() + missing);
    EXPECT_EQ(RequestOf(1, {1, 4}, {key}, batch).ByteSizeLong(), bytes);
    return key;
  };
  const auto largest = Add(1, {1, 4}, {of_bytes(0, kBytesMax)});
  EXPECT_TRUE(largest->ok()) << largest->message();
  const auto refused = Add(1, {1, 4}, {of_bytes(1, kBytesMax + 1)}, 1);
  ASSERT_TRUE(refused->answered());
  EXPECT_THAT(refused->message(),
              HasSubstr("job digits: a batch of 1 keys of group pair has 2064385 bytes, and at "
                        "most 2064384 can be sent to other racks; add the keys in several "
                        "batches"));
  const auto next = Add(1, {1, 4}, {Collective("small")}, 1);
  EXPECT_TRUE(next->ok()) << next->message();
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) EXPECT_EQ(FaultOf(rank), "") << rank;
}

TEST_F(RackGroupsTest, MembersThatDisagreeAboutTheRanksAreBothNamed) {
  EnterAll();
  ASSERT_TRUE(Add(4, {4, 5}, {Collective("a")})->ok());
  const auto call = Add(5, {5}, {Collective("a")});
  EXPECT_THAT(call->message(), AllOf(HasSubstr("rank 4 (node4) made group pair of ranks 4, 5"),
                                     HasSubstr("rank 5 (node5) made it of ranks 5")));
  EXPECT_THAT(FaultOf(0), HasSubstr("group pair"));
}

// Keys of the job are charged once, at rack 0. No other rack has the keys of a rack's group.
TEST_F(RackGroupsTest, KeysOfAGroupAreChargedWhereTheyAre) {
  EnterAll();
  AddToJob(0, RackNode::Key("w", 10));
  AddAll({2, 3}, {Collective("a"), Collective("b")});
  const auto charged = [&](std::uint32_t rack) {
    return node(rack).control().tenants().ledger().GrantUseOf(kDefaultTenant).charged.keys;
  };
  EXPECT_EQ(charged(0), 1u);
  EXPECT_EQ(charged(1), 2u);
  EXPECT_EQ(charged(2), 0u);
  ASSERT_TRUE(Add(3, {3, 4}, {Collective("c")}, 0, "wide")->ok());
  EXPECT_EQ(charged(0), 1u);
  EXPECT_EQ(charged(1), 3u);
  EXPECT_EQ(charged(2), 0u);
  Leave({0, 1, 2, 3, 4, 5});
  ExpectNothingLeft();
  EXPECT_EQ(charged(1), 0u);
}

}  // namespace
}  // namespace phub::server
