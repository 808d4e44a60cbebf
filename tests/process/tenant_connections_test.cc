// A tenant's connections and calls in progress are charged to it, and it has a share of the front's
// places: it cannot use up those of others.
#include <sys/resource.h>

#include <vector>

#include "server/front/crowd.h"
#include "tests/process/identity_fixture.h"

namespace phub::process {
namespace {

constexpr int kConnectionKib = 128;
constexpr int kCallKib = 24;
constexpr int kMemoryMib = 8;
constexpr int kConnectionsMax = (kMemoryMib << 10) / kConnectionKib;

class TenantConnections : public IdentityTest {
 protected:
  using Attend = grpc::ClientReaderWriter<v1::Heartbeat, v1::SessionEvent>;

  static void SetUpTestSuite() {
    daemon_ =
        new IdentityDaemon({.arguments = {"--request-memory", std::to_string(kMemoryMib) + "MiB"}});
    ASSERT_NE(daemon_->endpoint(), "") << daemon_->process().Outputs();
    for (const char* tenant : {"acme", "beta", "gamma", "zeta"}) {
      ASSERT_EQ(daemon_->AskAsRoot({"tenant", "create", tenant}).exit, Exit::WithCode(0));
    }
  }
  static grpc::Status Ask(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::Identity identity;
    return v1::Tenants::NewStub(channel)->WhoAmI(&context, {}, &identity);
  }
  // Opens a connection. WhoAmI itself needs the memory of a call, which it returns soon after.
  static grpc::Status Connect(const std::string& token,
                              std::vector<std::shared_ptr<grpc::Channel>>& connections) {
    connections.push_back(daemon_->Channel(daemon_->WithToken(token)));
    return Ask(connections.back());
  }
  // The front reports connections that have ended a moment later.
  static bool CanConnectSoon(const std::string& token) {
    for (int i = 0; i < 300; ++i) {
      std::vector<std::shared_ptr<grpc::Channel>> one;
      if (Connect(token, one).ok()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return false;
  }

  const std::string acme_ = daemon_->IssueToken("acme", {"--tenant", "acme"});
  const std::string beta_ = daemon_->IssueToken("beta", {"--tenant", "beta"});
  const std::string gamma_ = daemon_->IssueToken("gamma", {"--tenant", "gamma"});
  const std::string zeta_ = daemon_->IssueToken("zeta", {"--tenant", "zeta"});
};

TEST_F(TenantConnections, AreLimitedByTheTenantsMemoryAndOthersGetIn) {
  std::vector<std::shared_ptr<grpc::Channel>> connections;
  grpc::Status status;
  while (status.ok() && connections.size() < 2 * kConnectionsMax)
    status = Connect(acme_, connections);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("connections"));
  EXPECT_THAT(status.error_message(), HasSubstr("tenant acme"));
  EXPECT_THAT(status.error_message(), HasSubstr("request_memory (8.0 MiB)"));
  EXPECT_LE(connections.size(), static_cast<std::size_t>(kConnectionsMax) + 1);
  EXPECT_GE(connections.size(), static_cast<std::size_t>(kConnectionsMax) / 2);
  // The last connection may have been accepted, and its call refused. The next one is refused.
  status = Connect(acme_, connections);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_TRUE(CountReaches("phub_connections_refused_quota_total", 1));
  // Another tenant, and administrators, get in at the same address.
  std::vector<std::shared_ptr<grpc::Channel>> others;
  for (int i = 0; i < 10; ++i) {
    const grpc::Status other = Connect(zeta_, others);
    EXPECT_TRUE(other.ok()) << other.error_message();
  }
  EXPECT_EQ(daemon_->AskAsRoot({"whoami"}).exit, Exit::WithCode(0));
  // What is closed is returned.
  connections.clear();
  EXPECT_TRUE(CanConnectSoon(acme_));
}

TEST_F(TenantConnections, CallsInProgressAreLimitedToo) {
  std::vector<std::shared_ptr<grpc::Channel>> connections;
  constexpr int kConnectionsLeft = 4;
  constexpr std::size_t kCallsLeft = kConnectionsLeft * kConnectionKib / kCallKib;
  for (int i = 0; i < kConnectionsMax - kConnectionsLeft; ++i)
    ASSERT_TRUE(Connect(beta_, connections).ok()) << i;
  // Streams that never say which session they are for. phubd may see some of them later than calls.
  struct Stream {
    grpc::ClientContext context;
    std::unique_ptr<Attend> call;
  };
  const auto sessions = v1::Session::NewStub(connections.back());
  std::vector<std::unique_ptr<Stream>> streams;
  grpc::Status status;
  while (status.ok() && streams.size() < 3 * kCallsLeft) {
    streams.push_back(std::make_unique<Stream>());
    streams.back()->call = sessions->Attend(&streams.back()->context);
    status = Ask(connections.back());
  }
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("calls in progress"));
  EXPECT_TRUE(CountReaches("phub_requests_refused_quota_total", 1));
  std::vector<std::shared_ptr<grpc::Channel>> others;
  const grpc::Status other = Connect(zeta_, others);
  EXPECT_TRUE(other.ok()) << other.error_message();
  for (const auto& stream : streams) stream->context.TryCancel();
  for (const auto& stream : streams) (void)stream->call->Finish();
  EXPECT_TRUE(CanConnectSoon(beta_));
}

// Few descriptors, so that a tenant reaches its share of the front's places before its memory. The
// limit stays for the rest of the program.
class TenantShares : public TenantConnections {
 protected:
  static constexpr rlim_t kDescriptors = 512;

  static void SetUpTestSuite() {
    const rlimit limit{kDescriptors, kDescriptors};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    daemon_ = new IdentityDaemon({.tls = true});
    ASSERT_NE(daemon_->endpoint(), "") << daemon_->process().Outputs();
    for (const char* tenant : {"acme", "beta", "gamma", "zeta"}) {
      ASSERT_EQ(daemon_->AskAsRoot({"tenant", "create", tenant}).exit, Exit::WithCode(0));
    }
  }
  // Opens connections of a tenant until one is refused.
  static grpc::Status ConnectAll(const std::string& token,
                                 std::vector<std::shared_ptr<grpc::Channel>>& connections) {
    grpc::Status status;
    while (status.ok() && connections.size() < kDescriptors) status = Connect(token, connections);
    connections.pop_back();
    return status;
  }
  const std::size_t places_ = server::ScaledTo({}, kDescriptors).known_per_block_max;
};

TEST_F(TenantShares, OneThatOpensAllConnectionsItMayLeavesPlacesForOthersAtItsAddress) {
  std::vector<std::shared_ptr<grpc::Channel>> acme;
  grpc::Status status = ConnectAll(acme_, acme);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("tenant acme already has 96 connections from "));
  EXPECT_EQ(acme.size(), places_ * 3 / 4);
  EXPECT_TRUE(CountReaches("phub_connections_refused_quota_total", 1));
  std::vector<std::shared_ptr<grpc::Channel>> zeta;
  for (int i = 0; i < 10; ++i) {
    status = Connect(zeta_, zeta);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  // All tenants together have the places of their address, however many descriptors the front has.
  // When all are taken, the tenant that has the most gives up places, until it has no more than
  // others.
  std::vector<std::shared_ptr<grpc::Channel>> beta;
  status = ConnectAll(beta_, beta);
  EXPECT_THAT(status.error_message(), HasSubstr("all 128 places for connections from "));
  EXPECT_EQ(beta.size(), (places_ - zeta.size()) / 2);
  EXPECT_TRUE(
      CountReaches("phub_connections_refused_crowd_total", beta.size() - (places_ - 96 - 10)));
  for (const auto* each : {&acme, &zeta, &beta}) EXPECT_TRUE(Ask(each->back()).ok());
  EXPECT_TRUE(Ask(zeta.front()).ok());
  // Expect: a newcomer gets in while both want all places, although Acme's connections have streams
  // that do not end.
  struct Stream {
    grpc::ClientContext context;
    std::unique_ptr<Attend> call;
  };
  std::vector<std::unique_ptr<Stream>> streams;
  for (const auto& channel : acme) {
    streams.push_back(std::make_unique<Stream>());
    streams.back()->call = v1::Session::NewStub(channel)->Attend(&streams.back()->context);
  }
  std::vector<std::shared_ptr<grpc::Channel>> gamma;
  for (int i = 0; i < 5; ++i) {
    status = Connect(gamma_, gamma);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  for (const auto* each : {&zeta, &gamma}) {
    for (const auto& channel : *each) EXPECT_TRUE(Ask(channel).ok());
  }
  for (const auto& stream : streams) stream->context.TryCancel();
  for (const auto& stream : streams) (void)stream->call->Finish();
  streams.clear();
  // What is closed is returned.
  acme.clear();
  EXPECT_TRUE(CanConnectSoon(beta_));
  EXPECT_TRUE(CanConnectSoon(acme_));
}

}  // namespace
}  // namespace phub::process
