// Jobs over three racks with groups, and the messages about them.
#pragma once

#include <string>
#include <vector>

#include "server/control/racks/group_messages.h"
#include "server/control/racks/rack_groups.h"
#include "tests/unit/server/control/rack_jobs_fixture.h"

namespace phub::server {

// Racks 0, 1 and 2 have ranks 0 and 1, 2 and 3, 4 and 5.
class RackGroupsTest : public RackJobsTest {
 protected:
  static v1::KeySpec Collective(const std::string& name, std::uint64_t elements = 1000) {
    v1::KeySpec key = RackNode::Key(name, elements);
    key.set_optimizer(v1::OPTIMIZER_NONE);
    key.clear_hyper_parameters();
    key.set_collective(true);
    return key;
  }
  CallPtr<v1::AddKeysResponse> Add(std::uint32_t rank, const std::vector<std::uint32_t>& ranks,
                                   const std::vector<v1::KeySpec>& keys, std::uint32_t batch = 0,
                                   const std::string& name = "pair") {
    const auto call = NodeOf(rank).AddKeys(RequestOf(rank, ranks, keys, batch, name));
    Settle();
    return call;
  }
  v1::AddKeysRequest RequestOf(std::uint32_t rank, const std::vector<std::uint32_t>& ranks,
                               const std::vector<v1::KeySpec>& keys, std::uint32_t batch,
                               const std::string& name = "pair") {
    v1::AddKeysRequest request = RackNode::Batch(sessions[rank], batch, keys);
    *request.mutable_group() = GroupOf(ranks, name);
    return request;
  }
  static v1::GroupSpec GroupOf(const std::vector<std::uint32_t>& ranks,
                               const std::string& name = "pair") {
    v1::GroupSpec group;
    group.set_name(name);
    for (const std::uint32_t each : ranks) group.add_ranks(each);
    return group;
  }
  // Every member adds the keys. Returns the group's id.
  std::uint64_t AddAll(const std::vector<std::uint32_t>& ranks,
                       const std::vector<v1::KeySpec>& keys) {
    std::vector<CallPtr<v1::AddKeysResponse>> calls;
    for (const std::uint32_t rank : ranks) calls.push_back(Add(rank, ranks, keys));
    for (const auto& call : calls) EXPECT_TRUE(call->ok()) << call->message();
    return calls.back()->response.group_id();
  }
  CallPtr<v1::RemoveKeysResponse> BeginRemoval(std::uint32_t rank, std::uint64_t id) {
    v1::RemoveKeysRequest request;
    request.set_session_id(sessions[rank]);
    request.set_group_id(id);
    return NodeOf(rank).RemoveKeys(request);
  }
  CallPtr<v1::RemoveKeysResponse> Remove(std::uint32_t rank, std::uint64_t id) {
    const auto call = BeginRemoval(rank, id);
    Settle();
    return call;
  }
  // What each rack's daemon holds.
  std::vector<std::uint64_t> MemoryOfRacks() {
    std::vector<std::uint64_t> bytes;
    for (std::uint32_t rack = 0; rack < count(); ++rack) {
      node(rack).control().CheckInvariants();
      bytes.push_back(node(rack).control().memory_bytes());
    }
    return bytes;
  }
  void EvictFromRack1() {
    v1::EvictJobRequest evict;
    evict.set_job("digits");
    node(1).EvictJob(evict);
    Settle();
  }
  void ExpectNoFault() {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) EXPECT_EQ(FaultOf(rank), "") << rank;
  }
  void AddToJob(std::uint32_t batch, const v1::KeySpec& key) {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank)
      added_.push_back(NodeOf(rank).AddKeys(RackNode::Batch(sessions[rank], batch, {key})));
    Settle();
    for (const auto& call : added_) EXPECT_TRUE(call->ok()) << call->message();
  }
  std::vector<Command> AddedAt(std::uint32_t rack) {
    return node(rack).cores[0]->Executed(Command::Kind::kAddKeys);
  }

  // Messages between daemons about the group. The last of `ranks` added the keys.
  static v1::PeerMessage KeysFor(const std::vector<std::uint32_t>& ranks) {
    v1::PeerMessage message;
    v1::PeerGroupKeys& keys = *message.mutable_group_keys();
    *keys.mutable_group() = GroupOf(ranks);
    *keys.add_keys() = Collective("a");
    keys.set_rank(ranks.back());
    keys.set_number(1);
    keys.add_first_chunks(0);
    return message;
  }
  static v1::PeerMessage AskingFor(const std::vector<std::uint32_t>& ranks, std::uint32_t rank) {
    v1::PeerMessage message;
    v1::PeerGroupAsked& asked = *message.mutable_group_asked();
    *asked.mutable_group() = GroupOf(ranks);
    *asked.add_keys() = FilledIn(Collective("a"));
    asked.set_rank(rank);
    return message;
  }
  // The types that a daemon fills in before it asks rack 0.
  static v1::KeySpec FilledIn(v1::KeySpec key) {
    key.set_gradient_type(key.type());
    key.set_parameter_type(key.type());
    return key;
  }
  std::uint64_t RefusedAt(std::uint32_t rack) {
    return node(rack).Counter("phub_peers_refused_place_total");
  }
  // The message is counted, and has no other effect.
  void ExpectRefused(const char* why, std::uint32_t from, std::uint32_t to,
                     const v1::PeerMessage& message) {
    const std::uint64_t before = RefusedAt(to);
    Say(from, to, incarnation, message);
    Settle();
    EXPECT_EQ(RefusedAt(to), before + 1) << why;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) EXPECT_EQ(FaultOf(rank), "") << why;
  }

  std::vector<CallPtr<v1::AddKeysResponse>> added_;
};

}  // namespace phub::server
