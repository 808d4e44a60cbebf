// Daemons of one rack, from a worker's point of view.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>

#include "phub/v1/session.grpc.pb.h"
#include "tests/process/daemon_process.h"
#include "tests/process/rack_process.h"

namespace phub::process {
namespace {

using ::testing::HasSubstr;

class Client {
 public:
  explicit Client(const std::string& endpoint)
      : stub_(v1::Session::NewStub(
            grpc::CreateChannel(endpoint, grpc::InsecureChannelCredentials()))) {}

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
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  }

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
  request.add_daemon_cores(2);
  request.add_daemon_cores(2);
  return request;
}

TEST(PhubdRack, APairStartedWithOneListAgreesAndSeatsARankAtBoth) {
  RackProcess rack(2, {"--cores", "2"});
  ASSERT_TRUE(rack.serving()) << rack.Outputs();
  Client first(rack.endpoint(0));
  Client second(rack.endpoint(1));
  const v1::Rack anchor = first.GetRack();
  const v1::Rack other = second.GetRack();
  EXPECT_EQ(anchor.configuration(), other.configuration());
  EXPECT_EQ(anchor.self(), 0u);
  EXPECT_EQ(other.self(), 1u);
  ASSERT_EQ(other.daemons_size(), 2);
  EXPECT_EQ(anchor.daemons(0).core_count(), 2u);
  EXPECT_EQ(other.daemons(1).core_count(), 2u);
  EXPECT_EQ(other.daemons(0).endpoint(), rack.endpoint(0));

  v1::JoinResponse at_first;
  v1::JoinResponse at_second;
  ASSERT_TRUE(first.Join(JoinOf(anchor, 0, 0), at_first).ok());
  const grpc::Status joined = second.Join(JoinOf(anchor, 1, at_first.incarnation()), at_second);
  ASSERT_TRUE(joined.ok()) << joined.error_message();
  EXPECT_EQ(at_second.incarnation(), at_first.incarnation());
  EXPECT_EQ(at_second.cores_size(), 2);
  EXPECT_THAT(at_first.shared_memory().name(), ::testing::StartsWith("phub-"));
  EXPECT_EQ(at_first.shared_memory().boot_id(), at_second.shared_memory().boot_id());
  EXPECT_NE(at_first.shared_memory().name(), at_second.shared_memory().name());
}

TEST(PhubdRack, ADaemonWithAnotherListRefusesTheWorkersOfThisOne) {
  RackProcess rack(2, {"--cores", "2", "--shm", "off"});
  ASSERT_TRUE(rack.serving()) << rack.Outputs();
  DaemonProcess stranger({"--cores", "2", "--self", rack.endpoint(1), "--daemons",
                          fmt::format("{},{},node3:7700", rack.endpoint(0), rack.endpoint(1))});
  ASSERT_NE(stranger.endpoint(), "") << stranger.process().Outputs();
  const v1::Rack ours = Client(rack.endpoint(0)).GetRack();
  Client client(stranger.endpoint());
  v1::JoinResponse response;
  const grpc::Status refused = client.Join(JoinOf(ours, 1, 7), response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.error_message(), HasSubstr(ours.configuration().substr(0, 12)));
  EXPECT_THAT(refused.error_message(), HasSubstr(client.GetRack().configuration().substr(0, 12)));
  // Expect: with shared memory turned off, the rack's own daemons share no memory.
  ASSERT_TRUE(Client(rack.endpoint(0)).Join(JoinOf(ours, 0, 0), response).ok());
  EXPECT_EQ(response.shared_memory().name(), "");
}

}  // namespace
}  // namespace phub::process
