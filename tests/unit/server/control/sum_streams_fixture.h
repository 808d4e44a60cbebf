// Control, a job of two ranks with sum=fixed, and a test that acts as the aggregators, the workers
// and the core loops.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/aggregation/endpoint_text.h"
#include "common/aggregation/stream_terms.h"
#include "server/control/lanes/sum_network.h"
#include "server/control/lanes/sum_streams.h"
#include "tests/unit/server/control/control_fixture.h"

namespace phub::server {

class DeafPort final : public SumPort {
 public:
  void Open(const phub_lease&) override {}
  bool Receive(TimeNs, const OnSum&) override { return false; }
  void NoteAssigned(aggregation::Position, TimeNs) override {}
  std::uint32_t AskAgain(TimeNs) override { return 0; }
  TimeNs deadline() const override { return INT64_MAX; }
  void SendParameters(const phub_parameters&, std::span<const std::byte>, std::uint8_t) override {}
  void Flush() override {}
};

// Aggregator i has the control socket names[i].
struct ScriptedAggregators final : SumNetwork {
  std::uint32_t aggregator_count() const override {
    return static_cast<std::uint32_t>(names.size());
  }
  const std::string& NameOf(AggregatorIndex aggregator) const override {
    return names.at(aggregator.value);
  }
  absl::StatusOr<std::unique_ptr<SumPort>> MakePort(AggregatorIndex aggregator, CoreIndex,
                                                    const aggregation::Geometry&,
                                                    aggregation::CoreStream&,
                                                    phub_endpoint& here) override {
    if (!ports.ok()) return ports;
    here = *aggregation::ParseEndpoint("127.0.0.1:" + std::to_string(6000 + aggregator.value));
    return std::make_unique<DeafPort>();
  }
  void Grant(AggregatorIndex aggregator, SumLeaseRequest request, Incarnation job,
             CoreIndex core) override {
    asked.push_back({aggregator, std::move(request), job, core});
  }
  void End(AggregatorIndex aggregator, aggregation::LeaseNumber number) override {
    ended.emplace_back(aggregator.value, number.value);
  }
  // Numbers of leases that have ended, of any aggregator.
  std::vector<std::uint32_t> Ended() const {
    std::vector<std::uint32_t> numbers;
    for (const auto& [aggregator, number] : ended) numbers.push_back(number);
    return numbers;
  }

  struct Asked {
    AggregatorIndex aggregator;
    SumLeaseRequest request;
    Incarnation job;
    CoreIndex core;
  };
  std::vector<std::string> names = {"/run/phub/aggregator.sock"};
  absl::Status ports;
  std::vector<Asked> asked;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> ended;  // aggregator, number
};

class SumStreamsTest : public ControlTest {
 protected:
  explicit SumStreamsTest(std::uint32_t core_count = 1)
      : ControlTest(core_count), loops_(core_count) {}

  // Both ranks of a job join. They replace the ranks of the job before, which goes on.
  void Enter(const std::function<void(v1::JobOptions&)>& change = {},
             const std::string& job = "digits") {
    if (has_aggregator_) control().SetSumNetwork(aggregator_);
    sessions_.clear();
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      v1::JoinRequest request = JoinOf(rank, 2, job);
      request.mutable_options()->set_sum(v1::SUM_FIXED);
      if (change) change(*request.mutable_options());
      if (adjust_) adjust_(request);
      sessions_.push_back(EnterAs(request));
    }
  }
  // To every core loop.
  void OpenLane(std::uint32_t rank, const std::string& endpoint,
                std::uint8_t version = wire::kLaneVersion, const std::string& transport = "tcp") {
    v1::OpenLanesRequest request;
    request.set_session_id(sessions_[rank]);
    for (std::uint32_t core = 0; core < loops_; ++core) {
      request.add_cores(core);
      if (!endpoint.empty()) request.add_sum_endpoints(endpoint);
    }
    const auto grants = OpenLanes(request);
    ASSERT_TRUE(grants->ok()) << grants->message();
    for (std::uint32_t core = 0; core < loops_; ++core) {
      const wire::LaneHello hello = HelloOf(grants->response, rank, core);
      ASSERT_EQ(control().lanes().AdmitLane(hello), wire::LaneRefusal::kNone);
      auto connection = std::make_unique<FakeConnection>(connections_live);
      connection->SetVersion(version);
      control().lanes().AttachLane(hello, std::move(connection), 0, transport, "10.0.0.5:40112");
    }
    Settle();
  }
  void OpenBoth() {
    OpenLane(0, "10.0.0.5:100");
    OpenLane(1, "10.0.0.6:101");
  }
  // Answers a request for a lease. Workers reach aggregator i at 10.0.0.(9 + i):7701.
  void GrantTo(const ScriptedAggregators::Asked& asked, std::uint32_t number) {
    phub_lease lease{};
    lease.number = number;
    lease.worker_count = static_cast<__u8>(asked.request.workers.size());
    lease.aggregator = *aggregation::ParseEndpoint(
        "10.0.0." + std::to_string(9 + asked.aggregator.value) + ":7701");
    std::ranges::copy(asked.request.workers, lease.workers);
    control().sum_streams().HandleGranted(asked.aggregator, asked.job, asked.core, lease);
    Settle();
  }
  void Grant(std::uint32_t number) { GrantTo(aggregator_.asked.back(), number); }
  // By core loop.
  std::vector<std::string> Ways() {
    v1::GetJobRequest request;
    request.set_job("digits");
    const auto info = GetJob(request);
    EXPECT_TRUE(info->ok()) << info->message();
    return {info->response.sum_ways().begin(), info->response.sum_ways().end()};
  }
  std::string Way() {
    const std::vector<std::string> ways = Ways();
    return ways.size() == 1 ? ways[0] : "?";
  }
  std::size_t Commands(Command::Kind kind, std::size_t core = 0) {
    return cores[core]->Executed(kind).size();
  }

  const std::uint32_t loops_;
  bool has_aggregator_ = true;
  std::function<void(v1::JoinRequest&)> adjust_;
  ScriptedAggregators aggregator_;
  std::vector<std::string> sessions_;
};

}  // namespace phub::server
