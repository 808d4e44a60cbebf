// Connections to a control port that cannot work: libphub and phubctl say why, and do not wait
// where waiting is useless.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "phub/client.h"
#include "tests/process/identity_fixture.h"

namespace phub::process {
namespace {

using ::testing::AllOf;

class ConnectErrorsTest : public IdentityTest {
 protected:
  static void SetUpTestSuite() {
    IdentityTest::SetUpTestSuite();
    token_ = daemon_->IssueToken("connect", {"--tenant", "acme"});
  }
  // A second daemon with TLS, whose certificate is this one.
  class OtherDaemon {
   public:
    explicit OtherDaemon(const std::string& certificate)
        : daemon_({"--state-dir", folder_.path() + "/state", "--control-socket",
                   folder_.path() + "/control.sock", "--tls-certificate", certificate + ".crt",
                   "--tls-key", certificate + ".key"}) {}
    const std::string& endpoint() const { return daemon_.endpoint(); }
    Process& process() { return daemon_.process(); }

   private:
    TemporaryFolder folder_;
    DaemonProcess daemon_;
  };
  static ConnectOptions WithAuthority() {
    ConnectOptions options;
    options.token_file = token_;
    options.tls.ca_file = daemon_->pki() + "/ca.crt";
    options.connect_timeout = std::chrono::seconds(60);
    return options;
  }
  // The error of libphub, which must come long before the timeout, and that of phubctl.
  static void ExpectBoth(const std::string& endpoint, const ConnectOptions& options,
                         const ::testing::Matcher<std::string>& why) {
    const auto start = std::chrono::steady_clock::now();
    const auto session = Connect(endpoint, options);
    ASSERT_FALSE(session.ok());
    EXPECT_EQ(session.status().code(), StatusCode::kUnavailable);
    EXPECT_THAT(session.status().message(), why);
    EXPECT_LT(std::chrono::steady_clock::now() - start, options.connect_timeout / 2);
    std::vector<std::string> arguments = {"-e", endpoint, "whoami"};
    const auto add = [&](const char* name, const std::string& value) {
      if (!value.empty()) arguments.insert(arguments.end(), {name, value});
    };
    add("--ca-file", options.tls.ca_file);
    add("--server-name", options.tls.server_name);
    add("--certificate", options.tls.certificate);
    add("--key", options.tls.key);
    const Finished failed = RunToEnd(kPhubctl, arguments);
    EXPECT_EQ(failed.exit, Exit::WithCode(5));
    EXPECT_THAT(failed.error, why);
  }
  static inline std::string token_;
};

TEST_F(ConnectErrorsTest, RightSettingsConnect) {
  const auto session = Connect(daemon_->endpoint(), WithAuthority());
  EXPECT_TRUE(session.ok()) << ToString(session.status());
}

// phubd refuses to start with an expired certificate, but may serve until it expires.
TEST_F(ConnectErrorsTest, AnExpiredCertificate) {
  constexpr long kLifetimeSeconds = 3;
  OtherDaemon other(MakeOdd("expired", {.uri = "spiffe://rack.test/server/n",
                                        .hosts = {"127.0.0.1"},
                                        .days = 0,
                                        .seconds = kLifetimeSeconds}));
  ASSERT_NE(other.endpoint(), "") << other.process().Outputs();
  std::this_thread::sleep_for(std::chrono::seconds(kLifetimeSeconds + 1));
  ExpectBoth(other.endpoint(), WithAuthority(),
             AllOf(HasSubstr("its certificate expired on 20"), HasSubstr("clock says 20")));
}

TEST_F(ConnectErrorsTest, ACertificateForAnotherName) {
  OtherDaemon other(MakeOdd("other-name", {.uri = "spiffe://rack.test/server/n",
                                           .hosts = {"elsewhere.example", "10.9.8.7"},
                                           .days = 1}));
  ASSERT_NE(other.endpoint(), "") << other.process().Outputs();
  ExpectBoth(other.endpoint(), WithAuthority(),
             AllOf(HasSubstr("elsewhere.example, 10.9.8.7"), HasSubstr("127.0.0.1"),
                   HasSubstr("--server-name")));
  ConnectOptions named = WithAuthority();
  named.tls.server_name = "elsewhere.example";
  EXPECT_TRUE(Connect(other.endpoint(), named).ok());
}

TEST_F(ConnectErrorsTest, AnotherAuthority) {
  const std::string pki = daemon_->folder() + "/other-pki";
  ASSERT_EQ(RunToEnd(kPhubctl, {"pki", "init", pki, "--trust-domain", "rack.test"}).exit,
            Exit::WithCode(0));
  ConnectOptions options = WithAuthority();
  options.tls.ca_file = pki + "/ca.crt";
  ExpectBoth(daemon_->endpoint(), options,
             AllOf(HasSubstr("not issued by the authority in " + options.tls.ca_file),
                   HasSubstr("--ca-file")));
}

TEST_F(ConnectErrorsTest, ACallerWhoseCertificateHasExpired) {
  const std::string over =
      MakeOdd("caller-over",
              {.uri = "spiffe://rack.test/tenant/acme", .hosts = {}, .days = 0, .seconds = -60});
  ConnectOptions options = WithAuthority();
  options.token_file = "";
  options.tls.certificate = over + ".crt";
  options.tls.key = over + ".key";
  ExpectBoth(daemon_->endpoint(), options,
             AllOf(HasSubstr("refused the certificate in " + over + ".crt"), HasSubstr("expired")));
}

TEST_F(ConnectErrorsTest, TlsToADaemonWithoutIt) {
  DaemonProcess plain;
  ASSERT_NE(plain.endpoint(), "") << plain.process().Outputs();
  ExpectBoth(plain.endpoint(), WithAuthority(),
             AllOf(HasSubstr("does not use TLS"), HasSubstr("--ca-file")));
}

TEST_F(ConnectErrorsTest, NoTlsToADaemonWithIt) {
  ConnectOptions options;
  options.connect_timeout = std::chrono::seconds(60);
  ExpectBoth(daemon_->endpoint(), options,
             AllOf(HasSubstr("requires TLS"), HasSubstr("--ca-file")));
}

TEST_F(ConnectErrorsTest, TheOtherPortsOfADaemon) {
  DaemonProcess plain({"--metrics-listen", "127.0.0.1:0"});
  ASSERT_NE(plain.endpoint(), "") << plain.process().Outputs();
  // "http://127.0.0.1:7780/metrics"
  const std::string url = plain.Logged("metrics");
  const std::string metrics = url.substr(7, url.find('/', 7) - 7);
  const std::string data = plain.Logged("data_listen");
  ConnectOptions options;
  options.connect_timeout = std::chrono::seconds(60);
  ExpectBoth(metrics, options, HasSubstr("metrics port"));
  ExpectBoth(data, options, HasSubstr("data port"));
  ExpectBoth(metrics, WithAuthority(), HasSubstr("metrics port"));
  ExpectBoth(data, WithAuthority(), HasSubstr("data port"));
}

// The deadline may end an attempt at any point, the first one or a later one, before gRPC reports
// that the connection was refused. The cause is known all the same.
TEST_F(ConnectErrorsTest, APortWithoutAListenerIsTriedUntilTheTimeout) {
  for (const int milliseconds : {1, 2, 5, 49, 51, 52, 55, 60, 101, 103, 155, 300}) {
    ConnectOptions options;
    options.connect_timeout = std::chrono::milliseconds(milliseconds);
    const auto session = Connect("127.0.0.1:1", options);
    ASSERT_FALSE(session.ok());
    EXPECT_EQ(session.status().code(), StatusCode::kUnavailable);
    EXPECT_THAT(session.status().message(),
                AllOf(HasSubstr("cannot connect to 127.0.0.1:1: Connection refused"),
                      HasSubstr("tried for " + std::to_string(milliseconds) + " ms")));
  }
}

TEST_F(ConnectErrorsTest, ADaemonThatStartsLaterIsFound) {
  std::string endpoint;
  {
    DaemonProcess first;
    endpoint = first.endpoint();
  }
  ConnectOptions options;
  options.connect_timeout = std::chrono::seconds(30);
  Status status;
  // The daemon is this thread's child and ends with it.
  std::thread connecting([&] { status = Connect(endpoint, options).status(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  Process second = Process::Start(kPhubd, {"--listen", endpoint});
  connecting.join();
  EXPECT_TRUE(status.ok()) << ToString(status) << second.Outputs();
}

TEST_F(ConnectErrorsTest, AHostThatDoesNotResolveIsNamed) {
  ConnectOptions options;
  options.connect_timeout = std::chrono::milliseconds(500);
  const auto session = Connect("no.such.host.invalid:7700", options);
  ASSERT_FALSE(session.ok());
  EXPECT_EQ(session.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(session.status().message(), HasSubstr("cannot resolve 'no.such.host.invalid'"));
}

TEST_F(ConnectErrorsTest, AControlSocketThatIsNotThere) {
  const Finished failed = RunToEnd(kPhubctl, {"-e", "unix:/nonexistent/phub.sock", "health"});
  EXPECT_EQ(failed.exit, Exit::WithCode(5));
  EXPECT_THAT(failed.error, AllOf(HasSubstr("/nonexistent/phub.sock: No such file"),
                                  HasSubstr("phubd is not running")));
}

}  // namespace
}  // namespace phub::process
