// The front against attackers that need no identity: what they cost phubd and its front together,
// and whether an honest newcomer gets in meanwhile. A job trains during all tests, and must have
// the bits of an undisturbed one.
#include <grpcpp/impl/client_unary_call.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <thread>
#include <utility>

#include "tests/process/front_process.h"
#include "tests/process/identity_fixture.h"
#include "tests/process/raw_http2.h"
#include "tests/process/steady_training.h"
#include "tests/support/freed_memory.h"

namespace phub::process {
namespace {

// phubd and its front together.
constexpr std::uint64_t kGrowthBytesMax = (64u << 20) + 2 * kFreedBytesKept;
constexpr auto kNewcomerPatience = std::chrono::seconds(30);
constexpr std::uint32_t kAttackers = INADDR_LOOPBACK + 256;
using Clock = std::chrono::steady_clock;

class FrontTest : public IdentityTest {
 protected:
  static void SetUpTestSuite() {
    signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to connections that the daemon has closed
    IdentityTest::SetUpTestSuite();
    const std::string token = daemon_->IssueToken("victim", {"--tenant", "zeta"});
    setenv("PHUB_TOKEN_FILE", token.c_str(), 1);
    setenv("PHUB_CA_FILE", (daemon_->pki() + "/ca.crt").c_str(), 1);
    victim_ = new SteadyTraining({daemon_->endpoint()}, {.job = "victim", .world_size = 2},
                                 50 * kMillisecond);
    ASSERT_TRUE(victim_->WaitFor(1)) << daemon_->process().Outputs();
  }
  static void TearDownTestSuite() {
    EXPECT_EQ(victim_->Finish(), "");
    delete std::exchange(victim_, nullptr);
    IdentityTest::TearDownTestSuite();
  }
  static std::uint16_t Port() {
    const std::string endpoint = daemon_->endpoint();
    return static_cast<std::uint16_t>(std::stoul(endpoint.substr(endpoint.find(':') + 1)));
  }
  static pid_t Front() { return FrontOf(daemon_->process().pid()); }
  static std::uint64_t ResidentBytes() {
    return daemon_->process().ResidentBytes() + StatusField(Front(), "VmRSS:") * 1024;
  }
  // Runs the attack on a thread of its own until it returns or `done`; meanwhile newcomers call.
  // The counter, if one is given, counts it.
  void Attack(const std::string& counter,
              const std::function<void(const std::atomic<bool>& done)>& attack,
              std::chrono::seconds time) {
    const std::uint64_t counted = counter.empty() ? 0 : Counted(counter);
    const std::string token = daemon_->IssueToken(
        ::testing::UnitTest::GetInstance()->current_test_info()->name(), {"--tenant", "acme"});
    const std::uint64_t before = ResidentBytes();
    std::uint64_t peak = before;
    std::atomic<bool> done{false};
    const std::uint64_t trained = victim_->iteration();
    std::thread attacker([&] { attack(done); });
    const auto until = Clock::now() + time;
    int newcomers = 0;
    while (Clock::now() < until) {
      const auto begun = Clock::now();
      const grpc::Status status = WhoAmI(daemon_->WithToken(token));
      EXPECT_TRUE(status.ok()) << status.error_message();
      EXPECT_LT(Clock::now() - begun, kNewcomerPatience);
      ++newcomers;
      peak = std::max(peak, ResidentBytes());
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    done = true;
    attacker.join();
    peak = std::max(peak, ResidentBytes());
    EXPECT_GT(newcomers, 3);
    const std::uint64_t growth = peak - before;
    RecordProperty("growth_kib", static_cast<int>(growth >> 10));
    EXPECT_LE(growth, kGrowthBytesMax);
    EXPECT_TRUE(victim_->WaitFor(trained + 1));
    EXPECT_TRUE(counter.empty() || CountReaches(counter, counted + 1));
  }

  static inline SteadyTraining* victim_ = nullptr;
};

TEST_F(FrontTest, UnfinishedCallsWithoutAnIdentityCostLittle) {
  Attack(
      "phub_calls_refused_anonymous_total",
      [](const std::atomic<bool>& done) {
        while (!done) {
          std::vector<std::unique_ptr<RawHttp2>> attackers;
          for (int i = 0; i < 16; ++i) {
            attackers.push_back(std::make_unique<RawHttp2>(kAttackers, Port()));
          }
          for (std::uint32_t stream = 1; stream < 100 && !done; stream += 2) {
            for (const auto& each : attackers) {
              if (!each->ok()) continue;
              const std::string headers = RawHttp2::CallHeaders("/phub.v1.Session/Join");
              each->Send(
                  RawHttp2::Frame(RawHttp2::kHeaders, RawHttp2::kEndHeaders, stream, headers));
              // 64 KiB of a message of 4 MiB; the window allows no more.
              for (int part = 0; part < 4; ++part) {
                each->Send(RawHttp2::Frame(RawHttp2::kData, 0, stream, std::string(16'000, 'x')));
              }
            }
          }
        }
      },
      std::chrono::seconds(5));
}

TEST_F(FrontTest, AHeaderStringWithoutAnEndIsRefusedEarly) {
  std::atomic<std::uint64_t> most_sent{0};
  Attack(
      "phub_connections_refused_form_total",
      [&](const std::atomic<bool>& done) {
        while (!done) {
          RawHttp2 attacker(kAttackers, Port());
          // A value of 2 GiB begins.
          std::string block = RawHttp2::CallHeaders("/phub.v1.Session/Join");
          block += std::string("\0\1x\x7f\x81\xff\xff\xff\x07", 9);
          std::uint64_t sent = 0;
          bool open =
              attacker.ok() && attacker.Send(RawHttp2::Frame(RawHttp2::kHeaders, 0, 1, block));
          while (open && !done && sent < (64u << 20)) {
            open = attacker.Send(
                RawHttp2::Frame(RawHttp2::kContinuation, 0, 1, std::string(16'000, 'x')));
            sent += 16'000;
          }
          most_sent = std::max<std::uint64_t>(most_sent, sent);
        }
      },
      std::chrono::seconds(4));
  // Some of it lies in the sockets' buffers.
  EXPECT_LT(most_sent, 16u << 20);
}

TEST_F(FrontTest, RapidResetsEndTheConnection) {
  std::atomic<int> ended{0};
  Attack(
      "phub_connections_refused_flood_total",
      [&](const std::atomic<bool>& done) {
        const std::string headers = RawHttp2::CallHeaders("/phub.v1.Session/Join");
        while (!done) {
          RawHttp2 attacker(kAttackers, Port());
          bool open = attacker.ok();
          for (std::uint32_t stream = 1; open && !done; stream += 2) {
            open = attacker.Send(
                RawHttp2::Frame(RawHttp2::kHeaders, RawHttp2::kEndHeaders, stream, headers) +
                RawHttp2::Frame(RawHttp2::kReset, 0, stream, std::string("\0\0\0\x08", 4)));
          }
          ended += open ? 0 : 1;
        }
      },
      std::chrono::seconds(5));
  EXPECT_GT(ended, 0);
}

TEST_F(FrontTest, FramesWithoutAnEndThatCostNothingAreCutOff) {
  const std::string frames[] = {
      RawHttp2::Frame(RawHttp2::kPing, 0, 0, "12345678"),
      RawHttp2::Frame(RawHttp2::kSettings, 0, 0, ""),
      RawHttp2::Frame(RawHttp2::kWindowUpdate, 0, 0, std::string("\0\0\0\1", 4)),
  };
  for (const std::string& frame : frames) {
    RawHttp2 attacker(kAttackers, Port());
    ASSERT_TRUE(attacker.ok());
    bool open = true;
    for (int i = 0; i < 100'000 && open; ++i) open = attacker.Send(frame);
    EXPECT_FALSE(open) << static_cast<int>(frame[3]);
  }
}

TEST_F(FrontTest, CompressedMessagesAreRefusedUnread) {
  Attack(
      "phub_requests_refused_form_total",
      [](const std::atomic<bool>& done) {
        while (!done) {
          grpc::ClientContext context;
          context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
          context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
          v1::JoinRequest request = JoinOf("job", 1);
          request.set_host(std::string(200 << 20, 'x'));
          v1::JoinResponse response;
          const auto stub = v1::Session::NewStub(daemon_->Channel(daemon_->WithToken("")));
          EXPECT_EQ(stub->Join(&context, request, &response).error_code(),
                    grpc::StatusCode::UNIMPLEMENTED);
        }
      },
      std::chrono::seconds(4));
}

// With an identity. Parsed, each message would need 200 MiB and more.
TEST_F(FrontTest, MessagesThatWouldNeedMuchMemoryAreNotParsed) {
  const auto channel =
      daemon_->Channel(daemon_->WithToken(daemon_->IssueToken("many", {"--tenant", "acme"})));
  std::string keys;
  for (int i = 0; i < 1'500'000; ++i) keys += std::string("\x1a\0", 2);
  Attack(
      "phub_requests_refused_size_total",
      [&](const std::atomic<bool>& done) {
        while (!done) {
          const grpc::Slice slice(keys);
          grpc::ByteBuffer response;
          grpc::ClientContext context;
          context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
          const grpc::internal::RpcMethod method("/phub.v1.Session/AddKeys",
                                                 grpc::internal::RpcMethod::NORMAL_RPC);
          const grpc::Status status =
              grpc::internal::BlockingUnaryCallImpl<grpc::ByteBuffer, grpc::ByteBuffer>(
                  channel.get(), method, &context, grpc::ByteBuffer(&slice, 1), &response)
                  .status();
          EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
        }
      },
      std::chrono::seconds(4));
}

TEST_F(FrontTest, SilentConnectionsKeepNobodyOut) {
  Attack(
      /*counter=*/"",  // on a slow host too few arrive in time to displace each other
      [](const std::atomic<bool>& done) {
        const std::string hello = ClientHello();
        std::vector<Descriptor> silent;
        const auto begun = Clock::now();
        while (!done) {
          // 205 a second, from 4 addresses. They say one thing and then nothing.
          const auto due = static_cast<std::size_t>(
              std::chrono::duration<double>(Clock::now() - begun).count() * 205);
          for (; silent.size() < due;) {
            Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
            sockaddr_in address{};
            address.sin_family = AF_INET;
            address.sin_addr.s_addr =
                htonl(kAttackers + static_cast<std::uint32_t>(silent.size() % 4));
            bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
            address.sin_port = htons(Port());
            address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
            connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
            (void)send(socket.get(), hello.data(), hello.size(), MSG_NOSIGNAL);
            silent.push_back(std::move(socket));
          }
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
      },
      std::chrono::seconds(8));
}

TEST_F(FrontTest, ItIsStartedAgainWhenItDies) {
  const std::string token = daemon_->IssueToken("again", {"--tenant", "acme"});
  const std::uint64_t restarts = Counted("phub_front_restarts_total");
  for (int i = 0; i < 5; ++i) {
    const pid_t front = Front();
    ASSERT_GT(front, 0);
    ASSERT_EQ(kill(front, SIGKILL), 0);
    const auto begun = Clock::now();
    grpc::Status status = WhoAmI(daemon_->WithToken(token));
    while (!status.ok() && Clock::now() - begun < std::chrono::seconds(20)) {
      status = WhoAmI(daemon_->WithToken(token));
    }
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_NE(Front(), front);
  }
  EXPECT_TRUE(CountReaches("phub_front_restarts_total", restarts + 5));
}

TEST_F(FrontTest, ItHasGivenUpWhatItDoesNotNeed) {
  const pid_t front = Front();
  EXPECT_EQ(StatusField(front, "NoNewPrivs:"), 1u);
#if !defined(__SANITIZE_ADDRESS__)
  EXPECT_EQ(StatusField(front, "Seccomp:"), 2u);  // a filter
#endif
  EXPECT_EQ(StatusField(front, "Threads:"), 1u);
  EXPECT_GT(getpriority(PRIO_PROCESS, static_cast<id_t>(front)),
            getpriority(PRIO_PROCESS, static_cast<id_t>(daemon_->process().pid())));
  std::ifstream file("/proc/" + std::to_string(front) + "/limits");
  const std::string limits{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(limits, ::testing::ContainsRegex("Max core file size +0 +0"));
  EXPECT_THAT(limits, ::testing::ContainsRegex("Max processes +0 +0"));
}

TEST_F(FrontTest, HeadersThatNameACallerMeanNothing) {
  const auto stub = v1::Tenants::NewStub(daemon_->Channel(daemon_->WithToken("")));
  for (const char* name : {"phub-peer", "phub-certificate", "x-forwarded-client-cert"}) {
    grpc::ClientContext context;
    context.AddMetadata(name, "spiffe://rack.test/admin/root");
    v1::Identity identity;
    EXPECT_EQ(stub->WhoAmI(&context, {}, &identity).error_code(),
              grpc::StatusCode::UNAUTHENTICATED);
  }
}

}  // namespace
}  // namespace phub::process
