// One tenant can neither use nor see another tenant's nonces and memory.
#include <algorithm>
#include <functional>
#include <map>

#include "common/transport/tcp/tcp_dial.h"
#include "phub/client.h"
#include "tests/process/identity_fixture.h"

namespace phub::process {
namespace {

// A rank that has joined, with a nonce for its lane to core 0.
struct Seat {
  v1::JoinResponse joined;
  std::uint16_t data_port = 0;
  wire::LaneHello hello;
};

class IsolationTest : public IdentityTest {
 protected:
  static void SetUpTestSuite() {
    IdentityTest::SetUpTestSuite();
    for (const char* tenant : {"acme", "zeta"}) {
      tokens_[tenant] = daemon_->IssueToken(tenant, {"--tenant", tenant});
    }
  }
  static Seat Sit(const std::string& tenant, const std::string& job, std::uint32_t rank,
                  std::uint32_t world_size) {
    const auto stub = v1::Session::NewStub(daemon_->Channel(daemon_->WithToken(tokens_[tenant])));
    const auto call = [&](auto method, const auto& request, auto* response) {
      grpc::ClientContext context;
      const grpc::Status status = (stub.get()->*method)(&context, request, response);
      EXPECT_TRUE(status.ok()) << status.error_message();
    };
    Seat seat;
    v1::JoinRequest join = JoinOf(job, world_size);
    join.set_rank(rank);
    call(&v1::Session::Stub::Join, join, &seat.joined);
    v1::CommitRequest commit;
    commit.set_session_id(seat.joined.session_id());
    v1::CommitResponse committed;
    call(&v1::Session::Stub::Commit, commit, &committed);
    v1::OpenLanesRequest open;
    open.set_session_id(seat.joined.session_id());
    v1::OpenLanesResponse opened;
    call(&v1::Session::Stub::OpenLanes, open, &opened);
    EXPECT_LE(opened.valid_for_ns(), 30 * kSecond);
    if (opened.grants_size() == 0 || seat.joined.cores_size() == 0) return seat;
    const std::string& nonce = opened.grants(0).nonce();
    EXPECT_EQ(nonce.size(), 16u);  // 128 bits
    seat.data_port = static_cast<std::uint16_t>(seat.joined.cores(0).port());
    seat.hello.rank = Rank{rank};
    seat.hello.incarnation = Incarnation{seat.joined.incarnation()};
    seat.hello.membership_epoch = MembershipEpoch{seat.joined.membership_epoch()};
    std::transform(nonce.begin(), nonce.end(), seat.hello.nonce.begin(),
                   [](char c) { return static_cast<std::byte>(c); });
    return seat;
  }
  static absl::StatusCode Dial(const Seat& seat, const wire::LaneHello& hello) {
    return transport::DialTcp("127.0.0.1", seat.data_port, hello, 5 * kSecond).status().code();
  }
  static ConnectOptions As(const std::string& tenant) {
    return {.token_file = tokens_[tenant], .tls = {.ca_file = daemon_->pki() + "/ca.crt"}};
  }

  static inline std::map<std::string, std::string> tokens_;
};

TEST_F(IsolationTest, ANonceIsOfOneTenantJobRankAndEpochAndServesOnce) {
  constexpr auto kDenied = absl::StatusCode::kPermissionDenied;
  constexpr auto kOver = absl::StatusCode::kFailedPrecondition;
  const Seat own = Sit("acme", "bound", 0, 2);
  const Seat sibling = Sit("acme", "bound", 1, 2);
  const Seat foreign = Sit("zeta", "bound", 0, 2);
  ASSERT_NE(own.data_port, 0u);
  ASSERT_NE(own.joined.incarnation(), foreign.joined.incarnation());
  const auto spoilt = [&](const std::function<void(wire::LaneHello&)>& spoil) {
    wire::LaneHello hello = own.hello;
    spoil(hello);
    return Dial(own, hello);
  };
  // Another rank of the job with this nonce; a rank and a core that do not exist.
  EXPECT_EQ(spoilt([](auto& hello) { hello.rank = Rank{1}; }), kDenied);
  EXPECT_EQ(spoilt([](auto& hello) { hello.rank = Rank{7}; }), kDenied);
  EXPECT_EQ(spoilt([](auto& hello) { hello.core = CoreIndex{1}; }), kDenied);
  // Another tenant's job of the same name with this job's nonce, and the reverse.
  EXPECT_EQ(spoilt([&](auto& hello) { hello.incarnation = foreign.hello.incarnation; }), kDenied);
  EXPECT_EQ(spoilt([&](auto& hello) { hello.nonce = foreign.hello.nonce; }), kDenied);
  EXPECT_EQ(spoilt([&](auto& hello) { hello.nonce = sibling.hello.nonce; }), kDenied);
  EXPECT_EQ(spoilt([](auto& hello) { ++hello.membership_epoch.value; }), kOver);
  EXPECT_EQ(spoilt([](auto& hello) { ++hello.incarnation.value; }), kOver);
  EXPECT_EQ(spoilt([](auto& hello) { hello.nonce[7] ^= std::byte{1}; }), kDenied);
  // None of these attempts used up the nonce; this one does. The lane stays open, since closing it
  // would end the job.
  const auto lane = transport::DialTcp("127.0.0.1", own.data_port, own.hello, 5 * kSecond);
  EXPECT_TRUE(lane.ok()) << lane.status().message();
  EXPECT_EQ(Dial(own, own.hello), kDenied);
  EXPECT_GE(Counted("phub_lanes_refused_nonce_total"), 8u);
}

TEST_F(IsolationTest, MemoryOfOneTenantIsZeroWhenTheNextGetsIt) {
  constexpr std::uint64_t kElements = 4 << 20;
  for (const char* tenant : {"acme", "zeta", "acme"}) {
    auto session = Connect(daemon_->endpoint(), As(tenant));
    ASSERT_TRUE(session.ok()) << session.status().message();
    auto job = session->Join({.job = "secrets", .transport = TransportChoice::kTcp});
    ASSERT_TRUE(job.ok()) << job.status().message();
    auto key = job->AddKey("weights", f32, kElements, Sgd{.learning_rate = 1.0});
    ASSERT_TRUE(key.ok()) << key.status().message();
    // The parameters have their initial values, because nothing was ever pushed to them.
    std::fill(key->gradients<float>().begin(), key->gradients<float>().end(), 0.0f);
    ASSERT_TRUE(key->PushPull().Wait().ok());
    const auto found = key->parameters<float>();
    EXPECT_EQ(std::count(found.begin(), found.end(), 0.0f), static_cast<std::ptrdiff_t>(kElements));
    // Now they, and the staging slots, hold data that no other tenant may find.
    std::fill(key->gradients<float>().begin(), key->gradients<float>().end(), 77.0f);
    ASSERT_TRUE(key->PushPull().Wait().ok());
    EXPECT_EQ(key->parameters<float>()[kElements - 1], -77.0f);
    EXPECT_TRUE(job->Leave().ok());
  }
}

}  // namespace
}  // namespace phub::process
