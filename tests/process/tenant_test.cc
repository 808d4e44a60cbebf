// What a daemon with identities does for its tenants, and how it resists abuse.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <filesystem>
#include <span>

#include "common/base/descriptor.h"
#include "common/base/host_name.h"
#include "phub/client.h"
#include "tests/process/identity_fixture.h"
#include "tests/support/freed_memory.h"

namespace phub::process {
namespace {

using TenantTest = IdentityTest;

TEST_F(TenantTest, AJobTrainsWithATokenOverTls) {
  const std::string token = daemon_->IssueToken("trainer", {"--tenant", "acme"});
  auto session = Connect(daemon_->endpoint(),
                         {.token_file = token, .tls = {.ca_file = daemon_->pki() + "/ca.crt"}});
  ASSERT_TRUE(session.ok()) << session.status().message();
  auto job = session->Join({.job = "trained"});
  ASSERT_TRUE(job.ok()) << job.status().message();
  auto key = job->AddKey("weights", f32, 4, Sgd{.learning_rate = 1.0});
  ASSERT_TRUE(key.ok()) << key.status().message();
  const float initial[] = {1, 2, 3, 4};
  ASSERT_TRUE(job->Initialize(*key, std::span<const float>(initial)).ok());
  for (float& gradient : key->gradients<float>()) gradient = 1;
  ASSERT_TRUE(key->PushPull().Wait().ok());
  EXPECT_EQ(key->parameters<float>()[3], 3.0f);
  EXPECT_THAT(daemon_->AskAsRoot({"quota", "usage"}).output, HasSubstr("acme"));
  EXPECT_TRUE(job->Leave().ok());
  // Without a token, or with a TLS client that does not trust the daemon: refused, with the reason.
  auto nobody = Connect(daemon_->endpoint(), {.tls = {.ca_file = daemon_->pki() + "/ca.crt"}});
  ASSERT_TRUE(nobody.ok());
  const auto refused = nobody->Join({.job = "x"});
  EXPECT_EQ(refused.status().code(), StatusCode::kUnauthenticated) << refused.status().message();
}

TEST_F(TenantTest, WhoSavedAJobAndWhereIsInTheLog) {
  const std::string token = daemon_->IssueToken("saver", {"--tenant", "acme"});
  auto session = Connect(daemon_->endpoint(),
                         {.token_file = token, .tls = {.ca_file = daemon_->pki() + "/ca.crt"}});
  ASSERT_TRUE(session.ok()) << session.status().message();
  auto job = session->Join({.job = "kept"});
  ASSERT_TRUE(job.ok()) << job.status().message();
  auto key = job->AddKey("weights", f32, 4, Sgd{.learning_rate = 1.0});
  ASSERT_TRUE(key.ok()) << key.status().message();
  const float initial[] = {1, 2, 3, 4};
  ASSERT_TRUE(job->Initialize(*key, std::span<const float>(initial)).ok());
  ASSERT_TRUE(key->PushPull().Wait().ok());
  const std::string by_rank = daemon_->folder() + "/by-rank";
  const std::string by_tenant = daemon_->folder() + "/by-tenant";
  ASSERT_TRUE(job->SaveCheckpoint(by_rank).ok());
  const Finished saved = daemon_->Ask(token, {"job", "save", "kept", by_tenant});
  EXPECT_EQ(saved.exit, Exit::WithCode(0)) << saved.error;
  EXPECT_THAT(daemon_->Ask(token, {"job", "get", "kept"}).output, HasSubstr(by_tenant));
  // Other tenants' jobs cannot be saved. Requests for jobs that do not exist change nothing.
  const std::string other = daemon_->IssueToken("other", {"--tenant", "zeta"});
  EXPECT_EQ(daemon_->Ask(other, {"--tenant", "acme", "job", "save", "kept", by_tenant}).exit,
            Exit::WithCode(4));
  EXPECT_EQ(daemon_->Ask(token, {"job", "evict", "nothing", "--yes"}).exit, Exit::WithCode(3));
  const std::string log = daemon_->AskAsRoot({"audit", "tail", "-n", "1000"}).output;
  EXPECT_THAT(log, HasSubstr(fmt::format("job.save acme/kept (iteration 1 in {} on {})", by_rank,
                                         HostName())));
  EXPECT_THAT(log, HasSubstr(fmt::format("(iteration 1 in {} on ", by_tenant)));
  EXPECT_THAT(log, Not(HasSubstr("acme/nothing")));
  // A rank that saves repeatedly does not fill the disk with audit records.
  const std::uint64_t suppressed = Counted("phub_audit_suppressed_total");
  for (int i = 0; i < 600 && Counted("phub_audit_suppressed_total") == suppressed; i += 60) {
    for (int j = 0; j < 60; ++j) ASSERT_TRUE(job->SaveCheckpoint(by_rank).ok());
  }
  EXPECT_GT(Counted("phub_audit_suppressed_total"), suppressed);
  EXPECT_THAT(daemon_->Ask(token, {"job", "get", "kept"}).output, HasSubstr(by_rank));
  EXPECT_TRUE(job->Leave().ok());
}

TEST_F(TenantTest, QuotasRefuseWithTheShortfall) {
  ASSERT_EQ(
      daemon_->AskAsRoot({"tenant", "create", "small", "--memory", "64KiB", "--jobs", "1"}).exit,
      Exit::WithCode(0));
  const auto channel =
      daemon_->Channel(daemon_->WithToken(daemon_->IssueToken("small", {"--tenant", "small"})));
  const auto join = [&](const std::string& job) {
    grpc::ClientContext context;
    v1::JoinResponse joined;
    return v1::Session::NewStub(channel)->Join(&context, JoinOf(job, 1), &joined);
  };
  const grpc::Status refused = join("big");
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("tenant's memory quota is 64.0 KiB"));
  const std::string& message = refused.error_message();
  const std::size_t at = message.find("exactly ");
  ASSERT_NE(at, std::string::npos) << message;
  // Expect: with exactly that much more memory the job fits; with one byte less it does not.
  const std::uint64_t enough = 64 * 1024 + std::stoull(message.substr(at + 8));
  const auto set = [&](std::uint64_t bytes) {
    return daemon_->AskAsRoot({"tenant", "set-quota", "small", "--memory", std::to_string(bytes)});
  };
  ASSERT_EQ(set(enough - 1).exit, Exit::WithCode(0));
  EXPECT_EQ(join("big").error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  ASSERT_EQ(set(enough).exit, Exit::WithCode(0));
  EXPECT_TRUE(join("big").ok());
  EXPECT_THAT(join("second").error_message(), HasSubstr("may have 1 jobs at once"));
  ASSERT_EQ(daemon_->AskAsRoot({"tenant", "delete", "small", "--yes"}).exit, Exit::WithCode(1));
  ASSERT_EQ(daemon_->AskAsRoot({"tenant", "suspend", "small", "--yes"}).exit, Exit::WithCode(0));
  EXPECT_EQ(join("third").error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(TenantTest, HugeHeadersAreRefusedAndTheDaemonStaysSmall) {
  // Each call has its own connection, since gRPC closes a connection after repeated oversized
  // headers.
  const auto call = [&](std::size_t bytes) {
    const auto stub = v1::Tenants::NewStub(daemon_->Channel(daemon_->WithToken("")));
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + std::string(bytes, 'x'));
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::Identity identity;
    return stub->WhoAmI(&context, {}, &identity);
  };
  // Below the limit it is refused like any wrong token.
  EXPECT_EQ(call(4 * 1024).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  const std::uint64_t before = daemon_->process().ResidentBytes();
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(call(12 * 1024).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    // One string of this size ends the connection.
    EXPECT_EQ(call(1 << 20).error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  EXPECT_LT(daemon_->process().ResidentBytes(), before + (64u << 20) + kFreedBytesKept);
  EXPECT_EQ(daemon_->AskAsRoot({"health"}).exit, Exit::WithCode(0));
}

TEST_F(TenantTest, ConnectionsThatSayNothingAreClosedInTime) {
  const std::uint16_t port = static_cast<std::uint16_t>(
      std::stoul(daemon_->endpoint().substr(daemon_->endpoint().find(':') + 1)));
  std::vector<Descriptor> silent;
  for (int i = 0; i < 200; ++i) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    silent.emplace_back(socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_EQ(connect(silent.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof address),
              0);
  }
  EXPECT_EQ(daemon_->AskWithout({"health"}).exit, Exit::WithCode(0));
  for (const Descriptor& connection : silent) {
    pollfd closed{connection.get(), POLLIN, 0};
    EXPECT_EQ(poll(&closed, 1, 15'000), 1);
  }
}

TEST_F(TenantTest, SecretsThatOthersMayReadAreNotUsed) {
  const std::string path = daemon_->IssueToken("open", {"--tenant", "acme"});
  struct stat facts {};
  ASSERT_EQ(stat(path.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777, 0600u);
  std::filesystem::permissions(path, std::filesystem::perms{0644});
  const Finished refused = daemon_->Ask(path, {"whoami"});
  EXPECT_NE(refused.exit, Exit::WithCode(0));
  EXPECT_THAT(refused.error, HasSubstr("chmod 600"));
  EXPECT_EQ(Connect(daemon_->endpoint(), {.token_file = path}).status().code(),
            StatusCode::kFailedPrecondition);
  ASSERT_EQ(stat((daemon_->folder() + "/control.sock").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777, 0600u);
}

TEST(PhubdWithTls, DoesNotStartWithAKeyThatOthersMayReadOrThatIsNotTheCertificates) {
  IdentityDaemon daemon({.tls = true});
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  daemon.Kill();
  const std::string key = daemon.pki() + "/server-node.key";
  std::filesystem::permissions(key, std::filesystem::perms{0644});
  EXPECT_FALSE(daemon.Start());
  EXPECT_THAT(daemon.process().StandardError(), HasSubstr("chmod 600"));
  std::filesystem::permissions(key, std::filesystem::perms{0600});
  const std::string other = daemon.IssueCertificate("server", "other") + ".key";
  std::filesystem::copy_file(other, key, std::filesystem::copy_options::overwrite_existing);
  EXPECT_FALSE(daemon.Start());
  EXPECT_THAT(daemon.process().StandardError(), HasSubstr("is not the private key of"));
}

TEST(PhubdWithState, ATokenIsNotSentInTheClearToAnotherHost) {
  IdentityDaemon daemon;
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  ASSERT_EQ(daemon.AskAsRoot({"tenant", "create", "acme"}).exit, Exit::WithCode(0));
  const std::string token = daemon.IssueToken("acme", {"--tenant", "acme"});
  EXPECT_EQ(daemon.Ask(token, {"whoami"}).exit, Exit::WithCode(0));
  const Finished refused =
      RunToEnd(kPhubctl, {"-e", "rack7.invalid:7700", "--token-file", token, "whoami"});
  EXPECT_THAT(refused.error, HasSubstr("unencrypted"));
}

TEST(PhubctlContexts, AreKeptInAFileOfTheirOwnersAlone) {
  IdentityDaemon daemon;
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  ASSERT_EQ(daemon.AskAsRoot({"tenant", "create", "acme"}).exit, Exit::WithCode(0));
  const std::string token = daemon.IssueToken("acme", {"--tenant", "acme"});
  const std::string file = daemon.folder() + "/config/contexts.toml";
  const auto phubctl = [&](const std::vector<std::string>& arguments) {
    return RunToEnd(kPhubctl, arguments, {"PHUB_CONTEXTS=" + file});
  };
  // Relative here, but the context must work from any directory.
  const std::string relative = std::filesystem::relative(token).string();
  ASSERT_NE(relative, token);
  EXPECT_EQ(
      phubctl({"context", "set", "rack", "-e", daemon.endpoint(), "--token-file", relative}).exit,
      Exit::WithCode(0));
  EXPECT_THAT(phubctl({"context", "list"}).output, HasSubstr(" " + token));
  struct stat facts {};
  ASSERT_EQ(stat(file.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777, 0600u);
  EXPECT_THAT(phubctl({"whoami"}).output, HasSubstr("tenant acme"));
  EXPECT_THAT(phubctl({"context", "list"}).output, HasSubstr("*        rack"));
  // An endpoint given with -e takes nothing else from the context.
  EXPECT_EQ(phubctl({"-e", daemon.endpoint(), "whoami"}).exit, Exit::WithCode(4));
  EXPECT_THAT(phubctl({"-e", daemon.endpoint(), "--context", "rack", "whoami"}).output,
              HasSubstr("tenant acme"));
  EXPECT_EQ(phubctl({"--context", "nowhere", "whoami"}).exit, Exit::WithCode(3));
  EXPECT_EQ(phubctl({"context", "delete", "rack"}).exit, Exit::WithCode(2));  // requires --yes
  std::filesystem::permissions(file, std::filesystem::perms{0644});
  EXPECT_THAT(phubctl({"whoami"}).error, HasSubstr("chmod 600"));
}

}  // namespace
}  // namespace phub::process
