// Unauthenticated connections to the control port take few resources and do not keep other clients
// out.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <thread>

#include "common/base/descriptor.h"
#include "tests/process/identity_fixture.h"
#include "tests/process/raw_http2.h"
#include "tests/support/freed_memory.h"

namespace phub::process {
namespace {

constexpr std::uint64_t kGrowthBytesMax = (64u << 20) + kFreedBytesKept;
// All addresses that begin with 127 belong to this host.
constexpr in_addr_t kOwnAddress = INADDR_LOOPBACK;
constexpr in_addr_t kOtherAddress = INADDR_LOOPBACK + 1;

class StrangersTest : public IdentityTest {
 protected:
  static void SetUpTestSuite() {
    IdentityTest::SetUpTestSuite();
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  void Come(in_addr_t from, std::size_t count, const std::string& saying) {
    const auto port = static_cast<std::uint16_t>(
        std::stoul(daemon_->endpoint().substr(daemon_->endpoint().find(':') + 1)));
    for (std::size_t i = 0; i < count; ++i) {
      Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = htonl(from);
      ASSERT_EQ(bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
      address.sin_port = htons(port);
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      ASSERT_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
      (void)send(socket.get(), saying.data(), saying.size(), MSG_NOSIGNAL);
      sockets_.push_back(std::move(socket));
      if (i % 100 == 0) Measure();
    }
    Measure();
  }
  void Measure() { peak_bytes_ = std::max(peak_bytes_, daemon_->process().ResidentBytes()); }
  std::uint64_t Growth() const { return peak_bytes_ - std::min(peak_bytes_, before_bytes_); }

  const std::uint64_t before_bytes_ = daemon_->process().ResidentBytes();
  std::uint64_t peak_bytes_ = 0;
  std::vector<Descriptor> sockets_;
};

TEST_F(StrangersTest, ThousandsThatAreSilentSlowOrStallCostLittleAndKeepNobodyOut) {
  const std::string token = daemon_->IssueToken("known", {"--tenant", "acme"});
  const std::string hello = ClientHello();
  ASSERT_GT(hello.size(), 100u);
  const auto channel = daemon_->Channel(daemon_->WithToken(token));
  const auto ask = [&] {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::Identity identity;
    return v1::Tenants::NewStub(channel)->WhoAmI(&context, {}, &identity);
  };
  ASSERT_TRUE(ask().ok());
  for (const std::string& saying : {std::string(), hello.substr(0, 7), hello}) {
    SCOPED_TRACE(saying.size());
    Come(kOtherAddress, 2000, saying);
    // A known client stays connected, and a new one is admitted.
    EXPECT_TRUE(ask().ok());
    const Finished asked = daemon_->Ask(token, {"whoami"});
    EXPECT_EQ(asked.exit, Exit::WithCode(0)) << asked.error;
    Measure();
    sockets_.clear();
  }
  // From the address of other clients as well: a new connection replaces the oldest one.
  Come(kOwnAddress, 300, hello);
  const Finished asked = daemon_->Ask(token, {"whoami"});
  EXPECT_EQ(asked.exit, Exit::WithCode(0)) << asked.error;
  EXPECT_TRUE(ask().ok());
  RecordProperty("growth_bytes", static_cast<int>(Growth()));
  EXPECT_LE(Growth(), kGrowthBytesMax);
  EXPECT_TRUE(CountReaches("phub_connections_refused_crowd_total", 2000));
}

TEST_F(StrangersTest, WhoDoesNotSpeakTlsIsClosedAtOnceAndWhoIsSlowInTime) {
  const auto closed_within = [&](int milliseconds) {
    char byte = 0;
    const timeval patience{milliseconds / 1000, milliseconds % 1000 * 1000};
    setsockopt(sockets_.back().get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    const ssize_t got = recv(sockets_.back().get(), &byte, 1, 0);
    return got == 0 || (got < 0 && errno != EAGAIN);
  };
  const std::uint64_t form = Counted("phub_connections_refused_form_total");
  const std::uint64_t late = Counted("phub_connections_refused_late_total");
  for (const std::string& noise :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        std::string("\x16\x07\x01\x00\x10", 5), std::string("\x16\x03\x01\xff\xff", 5)}) {
    Come(kOwnAddress, 1, noise);
    EXPECT_TRUE(closed_within(2'500)) << noise;
  }
  Come(kOwnAddress, 1, ClientHello().substr(0, 100));
  EXPECT_TRUE(closed_within(30'000));
  EXPECT_TRUE(CountReaches("phub_connections_refused_form_total", form + 4));
  EXPECT_TRUE(CountReaches("phub_connections_refused_late_total", late + 1));
}

}  // namespace
}  // namespace phub::process
