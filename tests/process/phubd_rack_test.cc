// Two daemons of one rack, as workers find them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>

#include "common/base/descriptor.h"
#include "phub/v1/session.grpc.pb.h"
#include "tests/process/daemon_process.h"

namespace phub::process {
namespace {

using ::testing::HasSubstr;

// A port that was free a moment ago.
std::uint16_t FreePort() {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(socket.get(), generic, size), 0);
  EXPECT_EQ(getsockname(socket.get(), generic, &size), 0);
  return ntohs(address.sin_port);
}

class Daemon {
 public:
  Daemon(const std::string& endpoint, const std::string& daemons, const std::string& cores)
      : process_(Process::Start(
            kPhubd, {"--listen", endpoint, "--daemons", daemons, "--cores", cores})),
        stub_(v1::Session::NewStub(
            grpc::CreateChannel(endpoint, grpc::InsecureChannelCredentials()))) {
    EXPECT_TRUE(process_.WaitForOutput("serves on", 30 * kSecond)) << process_.Outputs();
  }

  v1::Rack GetRack() {
    v1::Rack rack;
    grpc::ClientContext context;
    SetDeadline(context);
    const grpc::Status status = stub_->GetRack(&context, {}, &rack);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return rack;
  }
  grpc::Status Join(const v1::JoinRequest& request, v1::JoinResponse& response) {
    grpc::ClientContext context;
    SetDeadline(context);
    return stub_->Join(&context, request, &response);
  }

 private:
  static void SetDeadline(grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  }

  Process process_;
  std::unique_ptr<v1::Session::Stub> stub_;
};

v1::JoinRequest JoinOf(const v1::Rack& rack, std::uint32_t daemon, std::uint64_t incarnation) {
  v1::JoinRequest request;
  request.set_protocol_version_min(1);
  request.set_protocol_version_max(1);
  request.set_job("digits");
  request.mutable_options()->set_world_size(1);
  request.set_host("node1");
  request.set_configuration(rack.configuration());
  request.set_daemon(daemon);
  request.set_incarnation(incarnation);
  request.add_daemon_cores(1);
  request.add_daemon_cores(2);
  return request;
}

TEST(PhubdRack, APairStartedWithOneListAgreesAndSeatsARankAtBoth) {
  const std::string first_endpoint = fmt::format("127.0.0.1:{}", FreePort());
  const std::string second_endpoint = fmt::format("127.0.0.1:{}", FreePort());
  const std::string list = first_endpoint + "," + second_endpoint;
  Daemon first(first_endpoint, list, "1");
  Daemon second(second_endpoint, list, "2");
  const v1::Rack anchor = first.GetRack();
  const v1::Rack other = second.GetRack();
  EXPECT_EQ(anchor.configuration(), other.configuration());
  EXPECT_EQ(anchor.self(), 0u);
  EXPECT_EQ(other.self(), 1u);
  EXPECT_EQ(anchor.daemons(0).core_count(), 1u);
  EXPECT_EQ(other.daemons(1).core_count(), 2u);
  EXPECT_EQ(other.daemons(0).endpoint(), first_endpoint);

  v1::JoinResponse at_first;
  v1::JoinResponse at_second;
  ASSERT_TRUE(first.Join(JoinOf(anchor, 0, 0), at_first).ok());
  const grpc::Status joined = second.Join(JoinOf(anchor, 1, at_first.incarnation()), at_second);
  ASSERT_TRUE(joined.ok()) << joined.error_message();
  EXPECT_EQ(at_second.incarnation(), at_first.incarnation());
  EXPECT_EQ(at_second.cores_size(), 2);
  EXPECT_THAT(at_first.shared_memory().name(), testing::StartsWith("phub-"));
  EXPECT_EQ(at_first.shared_memory().boot_id(), at_second.shared_memory().boot_id());
  EXPECT_NE(at_first.shared_memory().name(), at_second.shared_memory().name());
}

TEST(PhubdRack, ADaemonWithAnotherListRefusesTheWorkersOfThisOne) {
  const std::string first_endpoint = fmt::format("127.0.0.1:{}", FreePort());
  const std::string second_endpoint = fmt::format("127.0.0.1:{}", FreePort());
  Daemon first(first_endpoint, first_endpoint + "," + second_endpoint, "1");
  Daemon second(second_endpoint, first_endpoint + "," + second_endpoint + ",node3:7700", "2");
  v1::JoinResponse response;
  const grpc::Status refused = second.Join(JoinOf(first.GetRack(), 1, 7), response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.error_message(), HasSubstr(first.GetRack().configuration().substr(0, 12)));
  EXPECT_THAT(refused.error_message(), HasSubstr(second.GetRack().configuration().substr(0, 12)));
}

}  // namespace
}  // namespace phub::process
