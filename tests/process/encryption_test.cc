// TLS lanes between a daemon with identities and its workers; tenants that require TLS; and hostile
// networks and tenants that attack a daemon while a job trains.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <thread>

#include "common/base/descriptor.h"
#include "phub/client.h"
#include "tests/process/identity_fixture.h"
#include "tests/process/trainer.h"
#include "tests/support/freed_memory.h"

namespace phub::process {
namespace {

// Many more in the long form of the test.
std::size_t Many(std::size_t fast, std::size_t thorough) {
  return std::getenv("PHUB_TEST_LONG") != nullptr ? thorough : fast;
}

std::uint16_t PortAfter(const std::string& text, const std::string& before) {
  const std::size_t at = text.find(before);
  EXPECT_NE(at, std::string::npos) << text;
  return static_cast<std::uint16_t>(std::stoul(text.substr(at + before.size())));
}

// All addresses that begin with 127 belong to this host.
constexpr in_addr_t kOwnAddress = INADDR_LOOPBACK;
constexpr in_addr_t kOtherAddress = INADDR_LOOPBACK + 1;

Descriptor ConnectTo(std::uint16_t port, in_addr_t from) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(from);
  if (bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return {};
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return {};
  return socket;
}

// A daemon whose tcp lanes use TLS or not, and workers of a tenant that have its token.
class EncryptionTest : public ::testing::Test {
 protected:
  void Start(const std::string& data_tls) {
    daemon_ = std::make_unique<IdentityDaemon>(
        IdentityDaemon::Options{.tls = true, .arguments = {"--data-tls", data_tls}});
    ASSERT_NE(daemon_->endpoint(), "") << daemon_->process().Outputs();
  }
  // From now on, this process acts for the tenant.
  void Become(const std::string& tenant, const std::vector<std::string>& more = {}) {
    std::vector<std::string> create = {"tenant", "create", tenant};
    create.insert(create.end(), more.begin(), more.end());
    const Finished created = daemon_->AskAsRoot(create);
    ASSERT_EQ(created.exit, Exit::WithCode(0)) << created.error;
    token_ = daemon_->IssueToken(tenant, {"--tenant", tenant});
    setenv("PHUB_TOKEN_FILE", token_.c_str(), 1);
    setenv("PHUB_CA_FILE", (daemon_->pki() + "/ca.crt").c_str(), 1);
  }
  void TearDown() override {
    unsetenv("PHUB_TOKEN_FILE");
    unsetenv("PHUB_CA_FILE");
    if (daemon_ != nullptr) {
      EXPECT_THAT(daemon_->process().Outputs(), Not(HasSubstr("phub_")));
    }
  }
  Trained Train(const std::string& name, TransportChoice transport,
                std::uint64_t iterations) const {
    JobOptions job;
    job.job = name;
    job.world_size = 2;
    job.transport = transport;
    return TrainUndisturbed(daemon_->endpoint(), job, iterations);
  }
  std::uint64_t Counted(const std::string& counter) const {
    const std::string stats = daemon_->AskAsRoot({"stats", "--all"}).output;
    const std::size_t at = stats.find(counter);
    EXPECT_NE(at, std::string::npos) << counter;
    if (at == std::string::npos) return 0;
    const std::size_t end = stats.find('\n', at);
    return std::stoull(stats.substr(stats.rfind(' ', end) + 1));
  }

  std::unique_ptr<IdentityDaemon> daemon_;
  std::string token_;
};

TEST_F(EncryptionTest, TrainingOverTlsHasTheSameBits) {
  Start("on");
  Become("acme");
  const Trained encrypted = Train("encrypted", TransportChoice::kTcp, 50);
  ASSERT_EQ(encrypted.problem, "");
  const Trained shared = Train("shared", TransportChoice::kSharedMemory, 50);
  ASSERT_EQ(shared.problem, "");
  EXPECT_TRUE(encrypted.parameters == shared.parameters);
  EXPECT_THAT(daemon_->process().Outputs(), HasSubstr("lane=\"tcp+tls 127.0.0.1"));
}

TEST_F(EncryptionTest, AdministratorsSeeHowLanesTravelAndWhy) {
  Start("on");
  Become("strict", {"--encryption", "required"});
  JobOptions options;
  options.job = "seen";
  options.transport = TransportChoice::kTcp;
  auto trainer = Trainer::Start(daemon_->endpoint(), options);
  ASSERT_TRUE(trainer.ok()) << trainer.status().message();
  const std::string seen = daemon_->Ask(token_, {"job", "get", "seen"}).output;
  EXPECT_THAT(seen, HasSubstr("tcp+tls"));
  EXPECT_THAT(seen,
              HasSubstr("data_tls = on; RDMA is not used because the tenant requires encryption"));
  EXPECT_THAT(daemon_->AskAsRoot({"tenant", "get", "strict", "-o", "json"}).output,
              HasSubstr("\"required\""));
  EXPECT_TRUE(trainer->job().Leave().ok());
  // RDMA is not encrypted, so this tenant cannot use it.
  options.job = "rdma";
  options.transport = TransportChoice::kVerbs;
  const auto refused = Trainer::Start(daemon_->endpoint(), options);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("requires encryption"));
}

TEST_F(EncryptionTest, ATenantThatRequiresItGetsNoLaneWithoutIt) {
  Start("off");
  Become("strict", {"--encryption", "required"});
  const Trained refused = Train("plain", TransportChoice::kTcp, 3);
  EXPECT_THAT(refused.problem, HasSubstr("the tenant requires encryption"));
  // Shared memory stays within the daemon's host.
  EXPECT_EQ(Train("shared", TransportChoice::kSharedMemory, 3).problem, "");
  // Once the tenant no longer requires TLS, lanes use the daemon's setting.
  const Finished changed =
      daemon_->AskAsRoot({"tenant", "set-quota", "strict", "--encryption", "optional"});
  ASSERT_EQ(changed.exit, Exit::WithCode(0)) << changed.error;
  EXPECT_EQ(Train("plain", TransportChoice::kTcp, 3).problem, "");
  EXPECT_THAT(daemon_->AskAsRoot({"audit", "tail"}).output, HasSubstr("encryption required"));
}

// --- Abuse -------------------------------------------------------------------------------------

using Call = std::function<grpc::Status(grpc::ChannelInterface&, grpc::ClientContext&)>;

grpc::Status CallAs(IdentityDaemon& daemon, const client::Credentials& credentials,
                    const Call& call) {
  const auto channel = daemon.Channel(credentials);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  return call(*channel, context);
}

grpc::Status CallAsTenant(IdentityDaemon& daemon, const std::string& token_file, const Call& call) {
  return CallAs(daemon, daemon.WithToken(token_file), call);
}

client::Credentials OfCertificate(const IdentityDaemon& daemon, const std::string& path) {
  client::Credentials credentials;
  credentials.ca_file = daemon.pki() + "/ca.crt";
  credentials.certificate = path + ".crt";
  credentials.key = path + ".key";
  return credentials;
}

grpc::Status Drain(grpc::ChannelInterface& channel, grpc::ClientContext& context) {
  v1::ServerInfo info;
  return v1::Admin::NewStub(
             std::shared_ptr<grpc::ChannelInterface>(&channel, [](grpc::ChannelInterface*) {}))
      ->DrainServer(&context, {}, &info);
}

grpc::Status EvictDisturbed(grpc::ChannelInterface& channel, grpc::ClientContext& context) {
  v1::EvictJobRequest request;
  request.set_tenant("acme");
  request.set_job("disturbed");
  v1::JobInfo info;
  return v1::Admin::NewStub(
             std::shared_ptr<grpc::ChannelInterface>(&channel, [](grpc::ChannelInterface*) {}))
      ->EvictJob(&context, request, &info);
}

// The certificates of an attacker.
struct Certificates {
  explicit Certificates(const IdentityDaemon& daemon) {
    zeta = OfCertificate(daemon, daemon.IssueCertificate("tenant", "zeta"));
    over = OfCertificate(
        daemon,
        MakeOddCertificate(
            daemon, "over",
            {.uri = "spiffe://rack.test/admin/ada", .hosts = {}, .days = 0, .seconds = -60}));
    elsewhere = OfCertificate(
        daemon,
        MakeOddCertificate(daemon, "elsewhere",
                           {.uri = "spiffe://other.test/admin/ada", .hosts = {}, .days = 1}));
    const std::string other = daemon.folder() + "/other";
    EXPECT_EQ(RunToEnd(kPhubctl, {"pki", "init", other, "--trust-domain", "rack.test"}).exit,
              Exit::WithCode(0));
    EXPECT_EQ(RunToEnd(kPhubctl, {"pki", "issue", other, "admin", "eve"}).exit, Exit::WithCode(0));
    foreign = OfCertificate(daemon, other + "/admin-eve");
  }
  void ExpectForeignOnesRefused(IdentityDaemon& daemon) const {
    // TLS closes connections with an expired certificate or one of another authority. A certificate
    // of another trust domain passes TLS but has no identity here.
    EXPECT_EQ(CallAs(daemon, over, Drain).error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_EQ(CallAs(daemon, foreign, Drain).error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_EQ(CallAs(daemon, elsewhere, Drain).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  }
  client::Credentials zeta, over, elsewhere, foreign;
};

// Opens connections to both ports that send nothing, or garbage.
void Crowd(std::uint16_t port, in_addr_t from, std::size_t count,
           std::vector<Descriptor>& sockets) {
  for (std::size_t i = 0; i < count; ++i) {
    Descriptor socket = ConnectTo(port, from);
    if (!socket) continue;
    // Nothing; the beginning of a ClientHello; a plain lane hello; an HTTP/2 preface.
    const std::string beginnings[] = {"", std::string("\x16\x03\x01\x01\x20\x01\x00", 7),
                                      std::string(64, '\x01'), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"};
    const std::string& bytes = beginnings[i % 4];
    if (!bytes.empty()) (void)send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    sockets.push_back(std::move(socket));
  }
}

TEST_F(EncryptionTest, AbuseOfAllKindsDoesNotDisturbAJob) {
  Start("on");
  Become("zeta");
  const std::string zeta = token_;
  const std::string revoked = daemon_->IssueToken("revoked", {"--tenant", "zeta"});
  const std::string expired =
      daemon_->IssueToken("expired", {"--tenant", "zeta", "--lifetime", "1s"});
  const auto id_of = [](const std::string& path) { return ReadSecretFile(path)->substr(5, 16); };
  ASSERT_EQ(daemon_->AskAsRoot({"token", "revoke", id_of(revoked), "--yes"}).exit,
            Exit::WithCode(0));
  Become("acme");
  const std::string acme = token_;
  const std::uint64_t iterations = Many(500, 10'000);
  const Trained expected = Train("alone", TransportChoice::kTcp, iterations);
  ASSERT_EQ(expected.problem, "");
  const std::uint64_t before_bytes = daemon_->process().ResidentBytes();
  const std::string outputs = daemon_->process().Outputs();
  const std::uint16_t data_port = PortAfter(outputs, "data_listen=127.0.0.1:");
  const std::uint16_t control_port = PortAfter(daemon_->endpoint(), "127.0.0.1:");

  const Certificates certificates(*daemon_);
  std::vector<Descriptor> sockets;
  std::uint64_t peak_bytes = 0;
  std::size_t rounds = 0;
  std::string text = *ReadSecretFile(zeta);
  text[40] = text[40] == 'a' ? 'b' : 'a';
  const std::string forged = daemon_->folder() + "/forged.token";
  ASSERT_TRUE(WriteFileDurably(forged, text, kSecretFileMode, true).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));  // the certificate expires
  // A crowd from another address does not keep the workers from opening lanes.
  Crowd(data_port, kOtherAddress, Many(300, 2000), sockets);
  EXPECT_EQ(sockets.size(), Many(300, 2000));
  std::atomic<bool> done{false};
  Trained disturbed;
  std::thread training([&] {
    disturbed = Train("disturbed", TransportChoice::kTcp, iterations);
    done = true;
  });
  // A crowd from the workers' own address takes the places for handshakes, but closes no open lane.
  for (const char* rank : {"0", "1"}) {
    const std::string lane = std::string("job=\"disturbed\" rank=") + rank + " core=0 lane=";
    EXPECT_TRUE(daemon_->process().WaitForOutput(lane, 20 * kSecond));
  }
  // Only rounds that end before the job does count.
  for (std::size_t i = 0; i == 0 || (i < Many(3, 50) && !done); ++i) {
    Crowd(data_port, kOwnAddress, Many(300, 2000), sockets);
    Crowd(data_port, kOtherAddress, Many(300, 2000), sockets);
    Crowd(control_port, kOwnAddress, 300, sockets);
    Crowd(control_port, kOtherAddress, Many(1000, 4000), sockets);
    peak_bytes = std::max(peak_bytes, daemon_->process().ResidentBytes());
    for (const std::string& bad : {forged, revoked, expired}) {
      EXPECT_EQ(CallAsTenant(*daemon_, bad, Drain).error_code(), grpc::StatusCode::UNAUTHENTICATED)
          << bad;
    }
    EXPECT_EQ(CallAsTenant(*daemon_, zeta, Drain).error_code(),
              grpc::StatusCode::PERMISSION_DENIED);
    // Another tenant, by token and by certificate, can neither see nor end the job.
    for (const client::Credentials& other : {daemon_->WithToken(zeta), certificates.zeta}) {
      const grpc::Status evicted = CallAs(*daemon_, other, EvictDisturbed);
      EXPECT_EQ(evicted.error_code(), grpc::StatusCode::PERMISSION_DENIED)
          << evicted.error_message();
    }
    certificates.ExpectForeignOnesRefused(*daemon_);
    const grpc::Status huge = CallAsTenant(
        *daemon_, zeta, [](grpc::ChannelInterface& channel, grpc::ClientContext& context) {
          context.AddMetadata("x-noise", std::string(64 * 1024, 'x'));
          return Drain(channel, context);
        });
    EXPECT_FALSE(huge.ok());
    if (sockets.size() > 3000) sockets.clear();
    peak_bytes = std::max(peak_bytes, daemon_->process().ResidentBytes());
    if (!done) ++rounds;
  }
  sockets.clear();
  training.join();
  EXPECT_EQ(disturbed.problem, "");
  EXPECT_TRUE(disturbed.parameters == expected.parameters);
  EXPECT_GE(rounds, 1u);
  RecordProperty("rounds", static_cast<int>(rounds));
  RecordProperty("growth_bytes", static_cast<int>(peak_bytes - before_bytes));
  EXPECT_LE(peak_bytes - std::min(before_bytes, peak_bytes), (64u << 20) + kFreedBytesKept);
  // Each refusal was counted, and attempts at changes are in the audit log.
  EXPECT_GE(Counted("phub_calls_refused_token_total"), rounds);
  EXPECT_GE(Counted("phub_calls_refused_revoked_total"), rounds);
  EXPECT_GE(Counted("phub_calls_refused_expired_total"), rounds);
  EXPECT_GE(Counted("phub_calls_refused_role_total"), rounds);
  EXPECT_GE(Counted("phub_calls_refused_certificate_total"), rounds);
  EXPECT_GE(Counted("phub_calls_refused_tenant_total"), 2 * rounds);
  EXPECT_GT(Counted("phub_connections_refused_form_total"), 0u);
  EXPECT_GT(Counted("phub_lanes_refused_crowd_total") + Counted("phub_lanes_refused_form_total"),
            0u);
  EXPECT_THAT(daemon_->AskAsRoot({"audit", "tail"}).output, HasSubstr("zeta"));
}

}  // namespace
}  // namespace phub::process
