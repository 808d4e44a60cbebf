// Racks of two daemons each, in two planes of controls that do not know each other.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/server/control/rack_jobs_fixture.h"

namespace phub::server {

inline constexpr std::uint32_t kDaemons = 2;

// The daemons with one number, in all racks.
class Plane : public RackJobsTest {
 public:
  explicit Plane(std::uint32_t daemon) : daemon_(daemon) {
    for (std::uint32_t rack = 0; rack < kRacks; ++rack) Restart(rack);
  }
  void TestBody() override {}

  using RackJobsTest::Advance;
  using RackJobsTest::Cut;
  using RackJobsTest::CutOff;
  using RackJobsTest::ExpectNothingLeft;
  using RackJobsTest::ExpectRunStateEverywhere;
  using RackJobsTest::FaultOf;
  using RackJobsTest::kRacks;
  using RackJobsTest::kRanks;
  using RackJobsTest::Leave;
  using RackJobsTest::mute;
  using RackJobsTest::node;
  using RackJobsTest::NodeOf;
  using RackJobsTest::Say;
  using RackJobsTest::sessions;
  using RackJobsTest::set_options;
  using RackJobsTest::SetCut;
  using RackJobsTest::Settle;
  using RackJobsTest::StateAt;
  using RackJobsTest::streams;

  void Restart(std::uint32_t rack) {
    Start(rack, [&](ControlOptions& options) {
      for (std::uint32_t d = 0; d < kDaemons; ++d) {
        options.rack_endpoints.push_back(fmt::format("node{}:{}", rack, 7700 + d));
      }
      options.rack_self = daemon_;
      for (std::uint32_t r = 0; r < kRacks; ++r) {
        options.racks[r] = fmt::format("node{}:{}", r, 7700 + daemon_);
      }
    });
  }
  v1::JoinRequest JoinOf(std::uint32_t rank, std::uint64_t run) {
    v1::JoinRequest request = RackJobsTest::JoinOf(rank);
    request.set_daemon(daemon_);
    request.set_incarnation(run);
    request.set_configuration(NodeOf(rank).GetRack({})->response.configuration());
    for (std::uint32_t d = 0; d < kDaemons; ++d) request.add_daemon_cores(1);
    return request;
  }
  CallPtr<v1::JoinResponse> Join(std::uint32_t rank, std::uint64_t run = 0) {
    return NodeOf(rank).Join(JoinOf(rank, run));
  }
  void Commit(std::uint32_t rank, const v1::JoinResponse& joined) {
    RackNode& node = NodeOf(rank);
    const std::string session = sessions[rank] = joined.session_id();
    const auto call = node.Commit(session);
    ASSERT_TRUE(call->ok()) << call->message();
    node.sinks[session] = std::make_shared<RecordingSink>();
    const auto stream = node.control().liveness().AttachStream(session, node.sinks[session]);
    ASSERT_TRUE(stream.ok());
    streams[rank] = *stream;
  }
  CallPtr<v1::LeaveResponse> GiveBack(std::uint32_t rank, const std::string& session,
                                      const std::string& verdict, bool run_is_over) {
    v1::LeaveRequest request;
    request.set_session_id(session);
    request.set_verdict(verdict);
    request.set_run_is_over(run_is_over);
    auto call = std::make_shared<Call<v1::LeaveResponse>>();
    NodeOf(rank).control().seats().Leave(request,
                                         [call](const absl::Status& status, const auto& answer) {
                                           call->status = status;
                                           call->response = answer;
                                         });
    return call;
  }

 private:
  const std::uint32_t daemon_;
};

class RackPlanesTest : public ::testing::Test {
 protected:
  void Settle() {
    first.Settle();
    second.Settle();
  }
  void Advance(DurationNs duration) {
    constexpr DurationNs kStep = 100 * kMillisecond;
    for (DurationNs done = 0; done < duration; done += kStep) {
      first.Advance(kStep);
      second.Advance(kStep);
    }
  }
  // Joins as a worker does: first the first daemon of its rack, then the others with that
  // incarnation, then Commit.
  void Enter(const std::vector<std::uint32_t>& ranks) {
    for (const std::uint32_t rank : ranks) {
      const auto at_first = first.Join(rank);
      Settle();
      ASSERT_TRUE(at_first->ok()) << rank << ": " << at_first->message();
      run = at_first->response.incarnation();
      const auto at_second = second.Join(rank, run);
      Settle();
      ASSERT_TRUE(at_second->ok()) << rank << ": " << at_second->message();
      EXPECT_EQ(at_second->response.incarnation(), run);
      ASSERT_NO_FATAL_FAILURE(first.Commit(rank, at_first->response));
      ASSERT_NO_FATAL_FAILURE(second.Commit(rank, at_second->response));
    }
  }
  // Rack 1's request to rack 0 when rank 2 joins its second daemon.
  v1::PeerMessage RequestOfRank2() {
    v1::PeerMessage message;
    v1::PeerJob& job = *message.mutable_request();
    job.set_tenant("default");
    job.set_job("digits");
    *job.mutable_options() = second.JoinOf(2, 0).options();
    job.set_created_by(2);
    for (std::uint32_t d = 0; d < kDaemons; ++d) job.add_daemon_cores(1);
    return message;
  }

  const std::vector<std::uint32_t> everybody = {0, 1, 2, 3, 4, 5};
  Plane first{0};
  Plane second{1};
  std::uint64_t run = 0;
};

}  // namespace phub::server
