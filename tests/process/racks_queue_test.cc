// A rank that does not wait for answers while another rack's daemon is stopped. Its own job ends,
// and other jobs continue once the daemon is back.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "phub/v1/session.grpc.pb.h"
#include "tests/process/rack_expectations.h"
#include "tests/process/rack_process.h"
#include "tests/process/training_process.h"

namespace phub::process {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kMessagesMax = 4096;  // the limit of messages that wait for a rack

// A rank of a job of two that sends arbitrary messages.
class RawRank {
 public:
  explicit RawRank(const std::string& endpoint)
      : stub_(v1::Session::NewStub(
            grpc::CreateChannel(endpoint, grpc::InsecureChannelCredentials()))) {}

  grpc::Status Join(const std::string& job) {
    v1::JoinRequest request;
    request.set_protocol_version_min(1);
    request.set_protocol_version_max(1);
    request.set_job(job);
    request.mutable_options()->set_world_size(2);
    request.mutable_options()->set_plan("ring");
    v1::JoinResponse joined;
    grpc::ClientContext context;
    const grpc::Status status = stub_->Join(&context, request, &joined);
    if (!status.ok()) return status;
    session_ = joined.session_id();
    v1::CommitRequest commit;
    commit.set_session_id(session_);
    v1::CommitResponse committed;
    grpc::ClientContext again;
    return stub_->Commit(&again, commit, &committed);
  }
  grpc::Status RefuseLoad() {
    v1::LoadStateRequest refusal;
    refusal.set_session_id(session_);
    refusal.set_refusal_code(static_cast<int>(grpc::StatusCode::NOT_FOUND));
    refusal.set_refusal("no manifest");
    v1::LoadStateResponse response;
    grpc::ClientContext context;
    const auto writer = stub_->LoadState(&context, &response);
    writer->Write(refusal);
    writer->WritesDone();
    return writer->Finish();
  }

 private:
  std::unique_ptr<v1::Session::Stub> stub_;
  std::string session_;
};

TEST(RackQueue, WhoFillsItEndsAlone) {
  RackProcess racks(2, {"--cores", "1", "--pin", "off", "--liveness-timeout", "60s"},
                    RackProcess::Kind::kManyRacks);
  ASSERT_TRUE(racks.serving()) << racks.Outputs();
  std::vector<Process> trainers;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    trainers.push_back(StartTrainer({.endpoint = racks.endpoint(rank),
                                     .job = "training",
                                     .rank = rank,
                                     .world_size = 2,
                                     .iterations = 1000,
                                     .more = {"--plan", "ring", "--pause-ms", "1"}}));
  }
  ExpectTraining(trainers, racks);
  RawRank rank(racks.endpoint(0));
  const grpc::Status joined = rank.Join("flood");
  ASSERT_TRUE(joined.ok()) << joined.error_message() << racks.Outputs();
  racks.daemon(1).Signal(SIGSTOP);
  grpc::Status status;
  int said = 0;
  for (; said < 2 * kMessagesMax && status.ok(); ++said) status = rank.RefuseLoad();
  racks.daemon(1).Signal(SIGCONT);
  EXPECT_GT(said, kMessagesMax / 2);  // other waiting messages also use places
  EXPECT_THAT(
      status.error_message(),
      AllOf(HasSubstr("job flood failed"), HasSubstr(racks.endpoint(1)),
            HasSubstr("messages of this job were dropped"), HasSubstr("rack_messages_lost")));
  ExpectDone(trainers, racks);
  for (std::size_t rack = 0; rack < racks.size(); ++rack) ExpectMemoryBack(racks, rack, "flood");
}

}  // namespace
}  // namespace phub::process
