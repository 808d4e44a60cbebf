// What connections and calls of a tenant cost phubd and its front together. A tenant is charged for
// them by estimates (server/control/rpc/request_turns.h), which must not be too low.
#include <memory>
#include <vector>

#include "server/control/rpc/request_turns.h"
#include "tests/process/front_process.h"
#include "tests/process/identity_fixture.h"

namespace phub::process {
namespace {

constexpr int kConnections = 300;
constexpr int kCallsPerConnection = 100;
constexpr int kConnectionsWithCalls = 10;

class ConnectionCosts : public IdentityTest {
 protected:
  using Attend = grpc::ClientReaderWriter<v1::Heartbeat, v1::SessionEvent>;
  struct Stream {
    grpc::ClientContext context;
    std::unique_ptr<Attend> call;
  };

  static void SetUpTestSuite() {
    daemon_ = new IdentityDaemon({.tls = true});
    ASSERT_NE(daemon_->endpoint(), "") << daemon_->process().Outputs();
    ASSERT_EQ(daemon_->AskAsRoot({"tenant", "create", "acme"}).exit, Exit::WithCode(0));
  }
  std::int64_t ResidentBytes() const {
    return static_cast<std::int64_t>(daemon_->process().ResidentBytes() +
                                     StatusField(front_, "VmRSS:") * 1024);
  }
  void Connect(int count) {
    for (int i = 0; i < count; ++i) {
      connections_.push_back(daemon_->Channel(daemon_->WithToken(token_)));
      Ask(connections_.back());
    }
  }
  static void Ask(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::Identity identity;
    const grpc::Status status = v1::Tenants::NewStub(channel)->WhoAmI(&context, {}, &identity);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  // Calls without an end. The answer to a later call of the connection shows that they are there.
  void OpenCalls(const std::shared_ptr<grpc::Channel>& channel, int count) {
    const auto sessions = v1::Session::NewStub(channel);
    for (int i = 0; i < count; ++i) {
      streams_.push_back(std::make_unique<Stream>());
      streams_.back()->call = sessions->Attend(&streams_.back()->context);
    }
    Ask(channel);
  }

  const std::string token_ = daemon_->IssueToken("acme", {"--tenant", "acme"});
  const pid_t front_ = FrontOf(daemon_->process().pid());
  std::vector<std::shared_ptr<grpc::Channel>> connections_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

TEST_F(ConnectionCosts, AreNotMoreThanTheyAreChargedFor) {
  Connect(10);  // what the first ones need
  OpenCalls(connections_.front(), 10);
  const std::int64_t idle = ResidentBytes();
  Connect(kConnections);
  const std::int64_t connected = ResidentBytes();
  for (int i = 0; i < kConnectionsWithCalls; ++i)
    OpenCalls(connections_[static_cast<std::size_t>(10 + i)], kCallsPerConnection);
  const std::int64_t calling = ResidentBytes();
  const std::int64_t connection = (connected - idle) / kConnections;
  const std::int64_t call = (calling - connected) / (kConnectionsWithCalls * kCallsPerConnection);
  RecordProperty("connection_bytes", static_cast<int>(connection));
  RecordProperty("call_bytes", static_cast<int>(call));
  EXPECT_LE(connection, static_cast<std::int64_t>(server::kConnectionBytes));
  EXPECT_LE(call, static_cast<std::int64_t>(server::kOpenCallBytes));
  EXPECT_EQ(FrontOf(daemon_->process().pid()), front_);
  for (const auto& stream : streams_) stream->context.TryCancel();
  for (const auto& stream : streams_) (void)stream->call->Finish();
}

}  // namespace
}  // namespace phub::process
