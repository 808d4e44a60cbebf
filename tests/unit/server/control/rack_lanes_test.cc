// Lanes between racks: their transports, and what their nonces are valid for.
#include "tests/unit/server/control/rack_jobs_fixture.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::uint64_t kLaneBytes = 1 << 20;

class RackLanesTest : public RackJobsTest {
 protected:
  using Change = std::function<void(ControlOptions&)>;

  using Peers = LaneTransport::Peers;

  static void HasTransport(ControlOptions& options, std::string name, Peers peers,
                           std::string why_not = {}) {
    const bool offered = peers == Peers::kOffered || peers == Peers::kRequired;
    options.lane_transports = {{.name = "tcp"},
                               {.name = std::move(name),
                                .peers = peers,
                                .why_no_peers = std::move(why_not),
                                .peer_lane_bytes = offered ? kLaneBytes : 0}};
  }
  static void HasVerbs(ControlOptions& options) { HasTransport(options, "verbs", Peers::kOffered); }
  static void HasVerbsOnly(ControlOptions& options) {
    HasTransport(options, "verbs", Peers::kRequired);
  }
  static Change HasNoVerbs(const std::string& reason) {
    return [reason](ControlOptions& options) {
      HasTransport(options, "verbs", Peers::kUnavailable, reason);
    };
  }
  void StartAll(const Change& change) {
    for (std::uint32_t rack = 0; rack < kRacks; ++rack) Start(rack, change);
  }
  // The transports of the lanes from `rack` to `other`.
  std::vector<std::string> LanesAt(std::uint32_t rack, std::uint32_t other) {
    v1::GetJobRequest request;
    request.set_job("digits");
    const auto call = node(rack).GetJob(request);
    EXPECT_TRUE(call->ok()) << call->message();
    const v1::ExchangeLink& link = call->response.exchange().links(static_cast<int>(other));
    return {link.lanes().begin(), link.lanes().end()};
  }
  // Requests a job, and holds the lane that rack 1 would dial to rack 0.
  PeerLaneCall HoldLane() {
    holds_dials = true;
    Join(2);
    Settle();
    for (const PeerLaneCall& call : node(1).network.dials) {
      if (call.to == RackIndex{0}) return call;
    }
    ADD_FAILURE() << "no lane was granted";
    return {};
  }
};

TEST_F(RackLanesTest, AreOverVerbsWhereBothHaveIt) {
  StartAll(HasVerbs);
  EnterAll();
  for (const auto& [rack, other] : {std::pair{1u, 0u}, {2u, 0u}, {2u, 1u}}) {
    EXPECT_EQ(LanesAt(rack, other),
              std::vector<std::string>{"verbs " + node(rack).options.racks[other]});
  }
}

TEST_F(RackLanesTest, AreOverTcpWhereOneHasNoVerbs) {
  for (const std::uint32_t without : {0u, 1u, 2u}) {
    StartAll(HasVerbs);
    Start(without, HasNoVerbs("not wanted"));
    EnterAll();
    for (const auto& [rack, other] : {std::pair{1u, 0u}, {2u, 0u}, {2u, 1u}}) {
      const bool verbs = rack != without && other != without;
      EXPECT_EQ(LanesAt(rack, other), std::vector<std::string>{(verbs ? "verbs " : "tcp ") +
                                                               node(rack).options.racks[other]});
    }
    Leave({0, 1, 2, 3, 4, 5});
  }
}

TEST_F(RackLanesTest, ThatCannotBeMadeOverVerbsAreOverTcp) {
  StartAll(HasVerbs);
  offers_fail = true;
  EnterAll();
  EXPECT_EQ(LanesAt(2, 0), std::vector<std::string>{"tcp " + node(2).options.racks[0]});
}

TEST_F(RackLanesTest, ThatHaveToBeOverVerbsAreNotOverTcp) {
  StartAll(HasVerbs);
  Start(2, HasVerbsOnly);
  offers_fail = true;
  const auto call = Join(4);
  Advance(node(2).options.liveness_timeout);
  EXPECT_THAT(call->message(),
              AllOf(HasSubstr("rack_unreachable"), HasSubstr("no lane to core 0")));
  ExpectNothingLeft();
}

TEST_F(RackLanesTest, AJobWhoseLanesHaveToBeOverVerbsAndCannotSaysWhy) {
  const Change without = HasNoVerbs("its host has no device");
  // Either side may insist.
  for (const bool dialer_insists : {true, false}) {
    Start(0, dialer_insists ? without : Change(HasVerbsOnly));
    Start(1, dialer_insists ? Change(HasVerbsOnly) : without);
    Start(2, HasVerbs);
    const auto call = Join(2);
    Settle();
    Advance(kSecond);
    EXPECT_THAT(call->message(),
                AllOf(HasSubstr("rack 1"), HasSubstr("rack 0"),
                      HasSubstr("must use verbs (peer_transport = verbs)"),
                      HasSubstr(dialer_insists ? "rack 0 (node0:7700) does not offer verbs"
                                               : "its host has no device")));
    ExpectNothingLeft();
  }
}

// A transport that connects but carries no data costs only one job.
TEST_F(RackLanesTest, AfterOneOverVerbsWasLostTheNextJobsGoByTcp) {
  StartAll(HasVerbs);
  EnterAll();
  FakeCore& core = *node(1).cores[0];
  const auto lane = std::ranges::find(core.attached, LaneOwner(RackIndex{0}), &Command::owner);
  ASSERT_NE(lane, core.attached.end());
  core.LoseLane(*lane, transport::TransportError::kReset);
  Advance(2 * kSecond);
  ExpectNothingLeft();
  EnterAll();
  EXPECT_EQ(LanesAt(1, 0), std::vector<std::string>{"tcp " + node(1).options.racks[0]});
  EXPECT_EQ(LanesAt(2, 0), std::vector<std::string>{"verbs " + node(2).options.racks[0]});
  Leave({0, 1, 2, 3, 4, 5});
  ExpectNothingLeft();
  Advance(600 * kSecond);
  EnterAll();
  EXPECT_EQ(LanesAt(1, 0), std::vector<std::string>{"verbs " + node(1).options.racks[0]});
}

TEST_F(RackLanesTest, OfATenantThatRequiresEncryptionAreNotOverVerbs) {
  const Change secure = [](ControlOptions& options) {
    HasVerbs(options);
    options.tls_lanes = true;
  };
  StartAll(secure);
  for (std::uint32_t rack = 0; rack < kRacks; ++rack) {
    node(rack).control().tenants().SetTenant({.name = "default", .encryption_required = true});
  }
  EnterAll();
  EXPECT_EQ(LanesAt(1, 0), std::vector<std::string>{"tcp " + node(1).options.racks[0]});
}

TEST_F(RackLanesTest, EachNonceIsGoodForItsOwnWayOnce) {
  StartAll([](ControlOptions& options) {
    HasVerbs(options);
    options.tls_lanes = true;
  });
  const PeerLaneCall call = HoldLane();
  ASSERT_EQ(call.offers.size(), 1u);
  EXPECT_EQ(call.offers.front().transport_index, 1);
  EXPECT_NE(call.offers.front().nonce, call.hello.nonce);
  Control& granter = node(0).control();
  // The key of a lane over TLS is derived from a nonce that no one has read.
  EXPECT_EQ(granter.lanes().FindNonce(call.hello), std::optional(call.hello.nonce));
  wire::LaneHello hello = call.hello;
  hello.nonce = call.offers.front().nonce;
  EXPECT_EQ(granter.lanes().AdmitLane(hello, std::nullopt, true), wire::LaneRefusal::kNonce);
  EXPECT_EQ(granter.lanes().AdmitLane(hello), wire::LaneRefusal::kNone);
  EXPECT_EQ(granter.lanes().AdmitLane(hello), wire::LaneRefusal::kNonce);
  // That attempt failed; the other one is still valid.
  EXPECT_EQ(granter.lanes().AdmitLane(call.hello, std::nullopt, true), wire::LaneRefusal::kNone);
  EXPECT_EQ(granter.lanes().AdmitLane(call.hello, std::nullopt, true), wire::LaneRefusal::kNonce);
  EXPECT_EQ(granter.lanes().FindNonce(call.hello), std::nullopt);
}

// Control names no transport: a new one needs its entry in the table only.
TEST_F(RackLanesTest, AreOverAnyTransportThatBothOffer) {
  StartAll([](ControlOptions& options) { HasTransport(options, "datagrams", Peers::kOffered); });
  EnterAll();
  EXPECT_EQ(LanesAt(1, 0), std::vector<std::string>{"datagrams " + node(1).options.racks[0]});
}

TEST_F(RackLanesTest, ATransportThatOnlyThePeerKnowsIsLeftOut) {
  StartAll(HasVerbs);
  Start(0, [](ControlOptions& options) { HasTransport(options, "datagrams", Peers::kOffered); });
  EnterAll();
  EXPECT_EQ(LanesAt(1, 0), std::vector<std::string>{"tcp " + node(1).options.racks[0]});
}

TEST_F(RackLanesTest, ATransportThatThePeerRequiresAndThisDaemonDoesNotKnowEndsTheJob) {
  StartAll(HasVerbs);
  Start(0, [](ControlOptions& options) { HasTransport(options, "datagrams", Peers::kRequired); });
  const auto call = Join(2);
  Settle();
  Advance(kSecond);
  EXPECT_THAT(call->message(), AllOf(HasSubstr("must use datagrams (peer_transport = datagrams)"),
                                     HasSubstr("this daemon does not have datagrams")));
  ExpectNothingLeft();
}

TEST_F(RackLanesTest, ANameThatThePeerChoseIsCutAndMadePrintable) {
  StartAll(HasVerbs);
  Start(0, [](ControlOptions& options) {
    HasTransport(options, "x\x1b[2J\n" + std::string(100'000, 'y'), Peers::kRequired);
  });
  const auto call = Join(2);
  Settle();
  Advance(kSecond);
  EXPECT_THAT(call->message(), HasSubstr("this daemon does not have x?[2J?yyy"));
  EXPECT_LT(call->message().size(), 2000u);
  ExpectNothingLeft();
}

// Daemons that do not know PeerConnect.offers send and read the older fields.
TEST_F(RackLanesTest, OffersOfVerbsAreUnderstoodByAndFromOlderDaemons) {
  StartAll(HasVerbs);
  node(1).network.Keep(RackIndex{2}, v1::PeerMessage::kConnect);
  holds_dials = true;
  const auto call = Join(2);
  Settle();
  ASSERT_EQ(node(1).network.kept.size(), 1u);
  v1::PeerMessage older = node(1).network.kept.front();
  node(1).network.Keep(RackIndex{2}, std::nullopt);
  v1::PeerConnect& connect = *older.mutable_connect();
  ASSERT_EQ(connect.offers_size(), 1);
  EXPECT_THAT(connect.verbs_nonces(), ::testing::ElementsAreArray(connect.offers(0).nonces()));
  EXPECT_FALSE(connect.verbs_only());
  connect.clear_offers();
  node(2).network.dials.clear();
  Say(1, 2, older.incarnation(), older);
  Settle();
  ASSERT_FALSE(node(2).network.dials.empty());
  EXPECT_EQ(node(2).network.dials.front().offers.size(), 1u);
}

TEST_F(RackLanesTest, GrantsThatAreNotWholeAreRefused) {
  StartAll(HasVerbs);
  node(1).network.Keep(RackIndex{2}, v1::PeerMessage::kConnect);
  const auto call = Join(2);
  Settle();
  ASSERT_EQ(node(1).network.kept.size(), 1u);
  const v1::PeerMessage good = node(1).network.kept.front();
  node(1).network.Keep(RackIndex{2}, std::nullopt);
  const auto say = [&](const std::function<void(v1::PeerConnect&)>& change) {
    v1::PeerMessage message = good;
    change(*message.mutable_connect());
    Say(1, 2, good.incarnation(), message);
    Settle();
  };
  const auto refused = [&] { return node(2).Counter("phub_peers_refused_place_total"); };
  const std::uint64_t before = refused();
  say([](v1::PeerConnect& connect) { connect.mutable_offers(0)->set_nonces(0, "short"); });
  say([](v1::PeerConnect& connect) {
    connect.mutable_offers(0)->add_nonces(std::string(16, 'n'));
  });
  say([](v1::PeerConnect& connect) { connect.set_verbs_nonces(0, "short"); });
  say([](v1::PeerConnect& connect) { connect.add_verbs_nonces(std::string(16, 'n')); });
  say([](v1::PeerConnect& connect) { connect.mutable_grants(0)->set_nonce("short"); });
  say([](v1::PeerConnect& connect) { connect.mutable_grants(0)->set_core(1); });
  EXPECT_EQ(refused(), before + 6);
  EXPECT_FALSE(call->answered());
  say([](v1::PeerConnect&) {});
  EXPECT_EQ(refused(), before + 6);
  EXPECT_TRUE(call->ok()) << call->message();
}

TEST_F(RackLanesTest, RegisteredMemoryOfLanesIsCharged) {
  EnterAll();
  const std::uint64_t plain = node(1).control().memory_bytes();
  Leave({0, 1, 2, 3, 4, 5});
  StartAll(HasVerbs);
  EnterAll();
  EXPECT_EQ(node(1).control().memory_bytes(), plain + 2 * kLaneBytes) << "to both others";
}

}  // namespace
}  // namespace phub::server
