// The daemons of several racks in one process. Tests simulate the core loops. A network between the
// daemons moves envelopes and lanes as server/control/rpc/peer_links.h does, but only on request.
// All daemons share one clock.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/plan/generators.h"
#include "server/control/racks/known_racks.h"
#include "server/control/racks/peer_network.h"
#include "tests/unit/server/control/control_fixture.h"

namespace phub::server {

class FakePeerNetwork final : public PeerNetwork {
 public:
  DroppedMessages Send(RackIndex to, const PeerSender& sender, SharedPeerMessage message) override {
    const v1::PeerMessage::MessageCase kind = message.message->message_case();
    ++sent[kind];
    if (kept_kind && kind == *kept_kind && to == kept_to) {
      kept.push_back(*message.message);
      return {};
    }
    return queues[to.value].Push(sender, std::move(message));
  }
  void DialLane(PeerLaneCall call) override { dials.push_back(std::move(call)); }
  // From now on, messages of this kind to this rack are only stored in `kept`. Without a kind, no
  // more messages are.
  void Keep(RackIndex to, std::optional<v1::PeerMessage::MessageCase> kind) {
    kept_to = to;
    kept_kind = kind;
  }

  std::map<std::uint32_t, PeerQueue> queues;  // by rack
  std::deque<PeerLaneCall> dials;
  std::map<v1::PeerMessage::MessageCase, int> sent;  // the number of messages of each kind
  std::vector<v1::PeerMessage> kept;
  RackIndex kept_to{};
  std::optional<v1::PeerMessage::MessageCase> kept_kind;
};

// The daemon of one rack.
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
  using ControlTest::Die;
  using ControlTest::EvictJob;
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
  using ControlTest::last_join;
  using ControlTest::Leave;
  using ControlTest::ListStalls;
  using ControlTest::OpenAllLanes;
  using ControlTest::options;
  using ControlTest::RemoveKeys;
  using ControlTest::Settle;
  using ControlTest::sinks;
  using ControlTest::streams;

  FakePeerNetwork network;
};

class RackJobsTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kRacks = 3;
  static constexpr std::uint32_t kRanks = 6;  // two in each rack

  enum class Cut { kNone, kReceipts, kAll };

  RackJobsTest() {
    for (std::uint32_t rack = 0; rack < kRacks; ++rack) Start(rack);
  }

  // Starts a daemon as if after a crash, without its previous state. `change`: changes its options.
  void Start(std::uint32_t rack, const std::function<void(ControlOptions&)>& change = {}) {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      if (RackOf(rank) == rack) sessions.erase(rank);
    }
    nodes_[rack] = std::make_unique<RackNode>(rack, count(), ++seeds_);
    if (change) change(nodes_[rack]->options);
    nodes_[rack]->clock.now = now_;
    nodes_[rack]->control().SetPeerNetwork(nodes_[rack]->network);
  }
  // Starts all daemons with one more, the aggregator of the switch between the racks. Returns its
  // number.
  std::uint32_t StartWithAggregator() {
    nodes_.resize(kRacks + 1);
    for (std::uint32_t rack = 0; rack < count(); ++rack) {
      Start(rack, [](ControlOptions& options) {
        options.aggregator_count = 1;
        options.rack_topology = std::make_shared<const plan::Topology>(
            *plan::Generate("switch:" + std::to_string(kRacks) + ",aggregate"));
      });
    }
    return kRacks;
  }
  RackNode& node(std::uint32_t rack) { return *nodes_[rack]; }
  std::uint32_t count() const { return static_cast<std::uint32_t>(nodes_.size()); }
  static std::uint32_t RackOf(std::uint32_t rank) { return rank / (kRanks / kRacks); }
  RackNode& NodeOf(std::uint32_t rank) { return node(RackOf(rank)); }

  // Cuts a direction: messages do not arrive at `to`, or they arrive but their receipts are lost.
  void SetCut(std::uint32_t from, std::uint32_t to, Cut cut) { cuts_[{from, to}] = cut; }
  void CutOff(std::uint32_t rack, Cut cut) {
    for (std::uint32_t other = 0; other < count(); ++other) {
      SetCut(rack, other, cut);
      SetCut(other, rack, cut);
    }
  }
  // Sends a message as if the daemon had sent it.
  void Say(std::uint32_t from, std::uint32_t to, std::uint64_t run, v1::PeerMessage message) {
    message.set_incarnation(run);
    node(from).network.Send(RackIndex{to}, {"default", Incarnation{run}}, std::move(message));
  }

  // Runs until nothing happens any more. Time does not advance.
  void Settle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (const auto& node : nodes_) node->Settle();
      for (std::uint32_t from = 0; from < count(); ++from) {
        for (std::uint32_t to = 0; to < count(); ++to) moved |= from != to && Deliver(from, to);
      }
      for (const auto& node : nodes_) moved |= !holds_dials && MakeLanes(*node);
    }
  }
  // Advances time. Workers in jobs send heartbeats, unless they are mute. Core loops measure lanes
  // between racks.
  void Advance(DurationNs duration) {
    constexpr DurationNs kStep = 100 * kMillisecond;
    for (const TimeNs end = now_ + duration; now_ < end;) {
      now_ = std::min(end, now_ + kStep);
      for (const auto& node : nodes_) node->clock.now = now_;
      for (const auto& [rank, session] : sessions) {
        if (!mute.contains(rank)) NodeOf(rank).Heartbeat(session);
      }
      MeasureLanes(kStep);
      Settle();
      for (const auto& node : nodes_) ASSERT_GT(node->control().NextDeadline(), now_) << "spins";
    }
  }

  // Advances time while no worker sends anything.
  void Pass(DurationNs duration) {
    now_ += duration;
    for (const auto& node : nodes_) node->clock.now = now_;
  }
  // The lanes between racks that one of them measures.
  struct KeptLane {
    FakeConnection* connection = nullptr;
    bool silent = false;
    std::uint64_t received = 0;
  };
  KeptLane& LaneOf(std::uint32_t observer, std::uint32_t other) {
    return lanes_[{observer, other}];
  }
  // Nothing more arrives from that rack on any lane.
  void Silence(std::uint32_t rack, bool silent = true) {
    for (std::uint32_t other = 0; other < count(); ++other) LaneOf(other, rack).silent = silent;
  }
  // As if all hosts were suspended: nothing ran, and no heartbeats arrived.
  void StandStill(DurationNs duration) {
    Pass(duration);
    Settle();
  }

  v1::JoinRequest JoinOf(std::uint32_t rank, const std::string& job = "digits",
                         const std::string& plan = "ring") {
    v1::JoinRequest request = RackNode::JoinOf(rank, kRanks, job);
    request.mutable_options()->set_plan(plan);
    if (set_options) set_options(*request.mutable_options());
    return request;
  }
  CallPtr<v1::JoinResponse> Join(std::uint32_t rank, const std::string& job = "digits",
                                 const std::string& plan = "ring") {
    return NodeOf(rank).Join(JoinOf(rank, job, plan));
  }
  // These ranks join, and open their Attend streams.
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
      const auto stream = node.control().liveness().AttachStream(session, node.sinks[session]);
      ASSERT_TRUE(stream.ok());
      streams[rank] = *stream;
    }
  }
  void EnterAll() { Enter({0, 1, 2, 3, 4, 5}); }
  void EnterAllWithAKey() {
    EnterAll();
    const auto keys = node(0).AddKeys(RackNode::Batch(sessions[0], 0, {RackNode::Key("w", 10)}));
    Settle();
    ASSERT_TRUE(keys->ok()) << keys->message();
  }
  void Leave(const std::vector<std::uint32_t>& ranks) {
    for (const std::uint32_t rank : ranks) {
      const auto call = NodeOf(rank).Leave(sessions[rank]);
      sessions.erase(rank);
      Settle();
      EXPECT_TRUE(call->ok()) << rank << ": " << call->message();
    }
  }
  // The error that ended the rank's job, or an empty string.
  std::string FaultOf(std::uint32_t rank) {
    const v1::Fault* const fault = NodeOf(rank).FaultAt(sessions[rank]);
    return fault == nullptr ? "" : fault->message();
  }
  // "standing", "ended", or an empty string if the rack does not know the job.
  std::string StateAt(std::uint32_t rack, const std::string& job = "digits") {
    v1::GetJobRequest request;
    request.set_job(job);
    const auto call = node(rack).GetJob(request);
    if (!call->ok()) return "";
    return call->response.state() == "running" ? call->response.exchange().state()
                                               : call->response.state();
  }
  void ExpectRunStateEverywhere(const std::string& state, const std::string& job = "digits") {
    for (std::uint32_t rack = 0; rack < count(); ++rack)
      EXPECT_EQ(StateAt(rack, job), state) << rack;
  }
  // Every rack's job is over and holds nothing.
  void ExpectNothingLeft() {
    Advance(kSecond);
    for (std::uint32_t rack = 0; rack < count(); ++rack) {
      EXPECT_EQ(node(rack).control().memory_bytes(), 0u) << rack;
      EXPECT_EQ(node(rack).control().job_count(), 0u) << rack;
      EXPECT_EQ(node(rack).connections_live, 0) << rack;
    }
  }

  std::map<std::uint32_t, std::string> sessions;  // by rank
  std::set<std::uint32_t> mute;                   // ranks
  std::map<std::uint32_t, StreamId> streams;      // by rank
  // Changes the options of joining jobs; may be empty.
  std::function<void(v1::JobOptions&)> set_options;
  std::uint64_t incarnation = 0;                      // the last job that was entered
  bool dials_plain = false;                           // regardless of Control's choice
  bool holds_dials = false;                           // dials wait
  bool offers_fail = false;                           // everywhere
  std::uint8_t lane_version = wire::kLaneVersionMin;  // of lanes between racks

 private:
  // Returns whether `to` accepted messages.
  bool Deliver(std::uint32_t from, std::uint32_t to) {
    const Cut cut = cuts_[{from, to}];
    if (cut == Cut::kAll) return false;
    PeerQueue& queue = node(from).network.queues[to];
    v1::PeerEnvelope envelope = node(from).control().rack_messages().MakeEnvelope(RackIndex{to});
    const std::size_t count = queue.Fill(envelope);
    const std::uint64_t end = queue.first_sequence() + count;
    std::optional<v1::PeerReceipt> receipt;
    node(to).control().rack_messages().OnEnvelope(
        envelope, [&](const absl::Status& status, const auto& given) {
          if (status.ok()) receipt = given;
          if (!status.ok())
            node(from).control().rack_messages().OnPeerRefusal(RackIndex{to},
                                                               std::string(status.message()));
        });
    if (!receipt) return false;
    if (cut == Cut::kReceipts) return std::exchange(heard_[{from, to}], end) != end;
    queue.Take(end);
    node(from).control().rack_messages().OnReceipt(RackIndex{to}, *receipt);
    return count > 0;
  }
  bool MakeLanes(RackNode& from) {
    const auto dials = std::exchange(from.network.dials, {});
    for (const PeerLaneCall& call : dials) {
      const auto& [to, host, port, granted, tls, offers, offers_only] = call;
      if (!from.control().peer_lanes().LacksPeerLane(granted, to)) continue;
      RackNode& granter = node(to.value);
      wire::LaneHello hello = granted;
      const bool by_offer = !offers.empty() && (offers_only || !offers_fail);
      if (by_offer) hello.nonce = offers.front().nonce;
      const bool encrypted = tls && !dials_plain && !by_offer;
      const wire::LaneRefusal refusal =
          by_offer && offers_fail ? wire::LaneRefusal::kCapacity
                                  : granter.control().lanes().AdmitLane(hello, {}, encrypted);
      if (refusal != wire::LaneRefusal::kNone) {
        from.control().peer_lanes().PeerLaneFailed(hello, to, absl::UnavailableError("refused"));
        continue;
      }
      const std::uint32_t dialer = from.options.rack_index;
      granter.control().lanes().AttachLane(hello, MakeLane(to.value, dialer), 0, "tcp",
                                           "10.0.0.5:40112");
      from.control().peer_lanes().AttachPeerLane(
          hello, to, MakeLane(dialer, to.value), 0,
          NameOf(from, call, by_offer) + " " + from.options.racks[to.value]);
    }
    return !dials.empty();
  }
  std::unique_ptr<FakeConnection> MakeLane(std::uint32_t observer, std::uint32_t other) {
    auto made = std::make_unique<FakeConnection>(node(observer).connections_live);
    made->SetVersion(lane_version);
    made->silence_meter().Begin({.received = 0, .read_all = true});
    lanes_[{observer, other}] = {.connection = made.get()};
    return made;
  }
  void MeasureLanes(DurationNs step) {
    for (auto& [place, lane] : lanes_) {
      const auto& attached = node(place.first).cores[0]->attached;
      const auto is_lane = [&](const Command& each) { return each.connection == lane.connection; };
      if (std::ranges::none_of(attached, is_lane)) continue;  // control has freed it
      if (!lane.silent) ++lane.received;
      lane.connection->silence_meter().Look({.received = lane.received, .read_all = true}, step);
    }
  }
  static std::string NameOf(const RackNode& from, const PeerLaneCall& call, bool by_offer) {
    if (!by_offer) return "tcp";
    return from.options.lane_transports[call.offers.front().transport_index].name;
  }

  TimeNs now_ = 1000 * kSecond;
  std::uint64_t seeds_ = 0;
  std::vector<std::unique_ptr<RackNode>> nodes_{kRacks};
  std::map<std::pair<std::uint32_t, std::uint32_t>, Cut> cuts_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, KeptLane> lanes_;  // by observer and other rack
  // By direction: messages below this number have arrived, although their receipts were lost.
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> heard_;
};

}  // namespace phub::server
