// The daemons of several racks in one process: each with core loops that tests play, and between
// them a network that moves envelopes and lanes as server/control/peer_links.h does, when it is
// told to. One time for all.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/plan/generators.h"
#include "server/control/peer_network.h"
#include "server/control/racks.h"
#include "tests/unit/server/control/control_fixture.h"

namespace phub::server {

class FakePeerNetwork final : public PeerNetwork {
 public:
  struct Queue {
    std::deque<v1::PeerMessage> messages;
    std::uint64_t first_sequence = 0;
    std::size_t messages_max = 4096;
  };
  struct Dial {
    RackIndex to{};
    wire::LaneHello hello;
    bool tls = false;
  };

  std::size_t Send(RackIndex to, v1::PeerMessage message) override {
    Queue& queue = queues[to.value];
    std::size_t dropped = 0;
    if (queue.messages.size() >= queue.messages_max) {
      dropped = queue.messages.size();
      queue.first_sequence += dropped;
      queue.messages.clear();
    }
    ++sent[message.message_case()];
    queue.messages.push_back(std::move(message));
    return dropped;
  }
  void DialLane(RackIndex to, std::string, std::uint16_t, const wire::LaneHello& hello,
                bool tls) override {
    dials.push_back({to, hello, tls});
  }

  std::map<std::uint32_t, Queue> queues;  // by rack
  std::deque<Dial> dials;
  std::map<v1::PeerMessage::MessageCase, int> sent;  // how many of each kind
};

// One rack's daemon.
class RackNode : public ControlTest {
 public:
  RackNode(std::uint32_t rack, std::uint32_t count, std::uint64_t seed) : ControlTest(1) {
    for (std::uint32_t i = 0; i < count; ++i) {
      options.racks.push_back("node" + std::to_string(i) + ":7700");
    }
    options.rack_index = rack;
    options.rack_topology =
        std::make_shared<const plan::Topology>(*plan::Generate("switch:" + std::to_string(count)));
    random = SeededRandom{seed};
  }
  void TestBody() override {}

  using ControlTest::AddKeys;
  using ControlTest::Attach;
  using ControlTest::Barrier;
  using ControlTest::Batch;
  using ControlTest::BeginSnapshot;
  using ControlTest::clock;
  using ControlTest::Commit;
  using ControlTest::connections_live;
  using ControlTest::control;
  using ControlTest::cores;
  using ControlTest::Counter;
  using ControlTest::Expect;
  using ControlTest::FaultAt;
  using ControlTest::GetJob;
  using ControlTest::GetJobVersions;
  using ControlTest::GetLoadedState;
  using ControlTest::GetRack;
  using ControlTest::Heartbeat;
  using ControlTest::Join;
  using ControlTest::JoinOf;
  using ControlTest::Key;
  using ControlTest::Leave;
  using ControlTest::options;
  using ControlTest::Settle;
  using ControlTest::sinks;

  FakePeerNetwork network;
};

class RackJobsTest : public testing::Test {
 protected:
  static constexpr std::uint32_t kRacks = 3;
  static constexpr std::uint32_t kRanks = 6;  // two in each rack

  enum class Cut { kNone, kReceipts, kAll };

  RackJobsTest() {
    for (std::uint32_t rack = 0; rack < kRacks; ++rack) Start(rack);
  }

  // Anew, as after a crash: nothing is left of what it knew. `change`: its options.
  void Start(std::uint32_t rack, const std::function<void(ControlOptions&)>& change = {}) {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      if (RackOf(rank) == rack) sessions.erase(rank);
    }
    nodes_[rack] = std::make_unique<RackNode>(rack, kRacks, ++seeds_);
    if (change) change(nodes_[rack]->options);
    nodes_[rack]->clock.now = now_;
    nodes_[rack]->control().SetPeerNetwork(nodes_[rack]->network);
  }
  RackNode& node(std::uint32_t rack) { return *nodes_[rack]; }
  static std::uint32_t RackOf(std::uint32_t rank) { return rank / (kRanks / kRacks); }
  RackNode& NodeOf(std::uint32_t rank) { return node(RackOf(rank)); }

  // What `from` says does not reach `to`, or `to` takes it and is not heard.
  void SetCut(std::uint32_t from, std::uint32_t to, Cut cut) { cuts_[{from, to}] = cut; }
  void CutOff(std::uint32_t rack, Cut cut) {
    for (std::uint32_t other = 0; other < kRacks; ++other) {
      SetCut(rack, other, cut);
      SetCut(other, rack, cut);
    }
  }
  // As if the daemon had said it.
  void Say(std::uint32_t from, std::uint32_t to, std::uint64_t run, v1::PeerMessage message) {
    message.set_incarnation(run);
    node(from).network.Send(RackIndex{to}, std::move(message));
  }

  // Until nothing happens any more; time stands still.
  void Settle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (const auto& node : nodes_) node->Settle();
      for (std::uint32_t from = 0; from < kRacks; ++from) {
        for (std::uint32_t to = 0; to < kRacks; ++to) moved |= from != to && Deliver(from, to);
      }
      for (const auto& node : nodes_) moved |= MakeLanes(*node);
    }
  }
  // Time passes; workers that are in jobs are heard of, unless they are mute.
  void Advance(DurationNs duration) {
    constexpr DurationNs kStep = 100 * kMillisecond;
    for (const TimeNs end = now_ + duration; now_ < end;) {
      now_ = std::min(end, now_ + kStep);
      for (const auto& node : nodes_) node->clock.now = now_;
      for (const auto& [rank, session] : sessions) {
        if (!mute.contains(rank)) NodeOf(rank).Heartbeat(session);
      }
      Settle();
      for (const auto& node : nodes_) ASSERT_GT(node->control().NextDeadline(), now_) << "spins";
    }
  }

  // As when everybody's host was asleep: nobody worked, and nobody was heard of.
  void StandStill(DurationNs duration) {
    now_ += duration;
    for (const auto& node : nodes_) node->clock.now = now_;
    Settle();
  }

  v1::JoinRequest JoinOf(std::uint32_t rank, const std::string& job = "digits",
                         const std::string& plan = "ring") {
    v1::JoinRequest request = RackNode::JoinOf(rank, kRanks, job);
    request.mutable_options()->set_plan(plan);
    return request;
  }
  CallPtr<v1::JoinResponse> Join(std::uint32_t rank, const std::string& job = "digits",
                                 const std::string& plan = "ring") {
    return NodeOf(rank).Join(JoinOf(rank, job, plan));
  }
  // These ranks are in, with their Attend streams.
  void Enter(const std::vector<std::uint32_t>& ranks) {
    std::map<std::uint32_t, CallPtr<v1::JoinResponse>> calls;
    for (const std::uint32_t rank : ranks) calls[rank] = Join(rank);
    Settle();
    for (const auto& [rank, call] : calls) {
      ASSERT_TRUE(call->ok()) << rank << ": " << call->message();
      incarnation = call->response.incarnation();
      RackNode& node = NodeOf(rank);
      const std::string session = sessions[rank] = call->response.session_id();
      ASSERT_TRUE(node.Commit(session)->ok());
      node.sinks[session] = std::make_shared<RecordingSink>();
      ASSERT_TRUE(node.control().AttachStream(session, node.sinks[session]).ok());
    }
  }
  void EnterAll() { Enter({0, 1, 2, 3, 4, 5}); }
  void Leave(const std::vector<std::uint32_t>& ranks) {
    for (const std::uint32_t rank : ranks) {
      const auto call = NodeOf(rank).Leave(sessions[rank]);
      sessions.erase(rank);
      Settle();
      EXPECT_TRUE(call->ok()) << rank << ": " << call->message();
    }
  }
  // What the rank was told of its job's end; empty: nothing.
  std::string FaultOf(std::uint32_t rank) {
    const v1::Fault* const fault = NodeOf(rank).FaultAt(sessions[rank]);
    return fault == nullptr ? "" : fault->message();
  }
  // "standing"; "ended"; empty: the rack knows no such job.
  std::string StateAt(std::uint32_t rack, const std::string& job = "digits") {
    v1::GetJobRequest request;
    request.set_job(job);
    const auto call = node(rack).GetJob(request);
    if (!call->ok()) return "";
    return call->response.state() == "running" ? call->response.exchange().state()
                                               : call->response.state();
  }
  void ExpectStateEverywhere(const std::string& state, const std::string& job = "digits") {
    for (std::uint32_t rack = 0; rack < kRacks; ++rack)
      EXPECT_EQ(StateAt(rack, job), state) << rack;
  }
  // Every rack's job is over, and nothing is held by it.
  void ExpectNothingLeft() {
    Advance(kSecond);
    for (std::uint32_t rack = 0; rack < kRacks; ++rack) {
      EXPECT_EQ(node(rack).control().memory_bytes(), 0u) << rack;
      EXPECT_EQ(node(rack).control().job_count(), 0u) << rack;
      EXPECT_EQ(node(rack).connections_live, 0) << rack;
    }
  }

  std::map<std::uint32_t, std::string> sessions;  // by rank
  std::set<std::uint32_t> mute;                   // ranks
  std::uint64_t incarnation = 0;                  // of the last job that was entered
  bool dials_plain = false;                       // whatever Control says

 private:
  // True if `to` took messages.
  bool Deliver(std::uint32_t from, std::uint32_t to) {
    const Cut cut = cuts_[{from, to}];
    if (cut == Cut::kAll) return false;
    FakePeerNetwork::Queue& queue = node(from).network.queues[to];
    v1::PeerEnvelope envelope = node(from).control().MakeEnvelope(RackIndex{to});
    envelope.set_first_sequence(queue.first_sequence);
    const std::size_t count = FillEnvelope(queue.messages, envelope);
    std::optional<v1::PeerReceipt> receipt;
    node(to).control().OnEnvelope(envelope, [&](const absl::Status& status, const auto& given) {
      if (status.ok()) receipt = given;
    });
    if (!receipt) return false;
    if (cut == Cut::kReceipts) {
      const std::uint64_t end = queue.first_sequence + count;
      return std::exchange(heard_[{from, to}], end) != end;
    }
    queue.messages.erase(queue.messages.begin(),
                         queue.messages.begin() + static_cast<std::ptrdiff_t>(count));
    queue.first_sequence += count;
    node(from).control().OnReceipt(RackIndex{to}, *receipt);
    return count > 0;
  }
  bool MakeLanes(RackNode& from) {
    const auto dials = std::exchange(from.network.dials, {});
    for (const auto& [to, hello, tls] : dials) {
      if (!from.control().LacksPeerLane(hello, to)) continue;
      RackNode& granter = node(to.value);
      const bool encrypted = tls && !dials_plain;
      const wire::LaneRefusal refusal = granter.control().AdmitLane(hello, std::nullopt, encrypted);
      if (refusal != wire::LaneRefusal::kNone) {
        from.control().PeerLaneFailed(hello, to, absl::UnavailableError("refused"));
        continue;
      }
      granter.Attach(hello);
      from.control().AttachPeerLane(hello, to,
                                    std::make_unique<FakeConnection>(from.connections_live), 0,
                                    "tcp " + from.options.racks[to.value]);
    }
    return !dials.empty();
  }

  TimeNs now_ = 1000 * kSecond;
  std::uint64_t seeds_ = 0;
  std::array<std::unique_ptr<RackNode>, kRacks> nodes_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, Cut> cuts_;
  // Of messages whose receipts are lost: those below were said.
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> heard_;
};

}  // namespace phub::server
