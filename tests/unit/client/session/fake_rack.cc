#include "tests/unit/client/session/fake_rack.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "client/session/job_impl.h"
#include "tests/unit/client/session/direct_channel.h"

namespace phub::client {

// A Job without a Session.
struct JobAccess {
  static Job Make(std::shared_ptr<JobImpl> state) { return Job(std::move(state)); }
};

class FakeRack::DirectConnector final : public Connector {
 public:
  explicit DirectConnector(FakeRack& rack) : rack_(rack) {}

  Result<std::unique_ptr<ControlChannel>> Connect(const Endpoint& daemon) override {
    for (std::size_t i = 0; i < rack_.daemons_.size(); ++i)
      if (rack_[i].name() == daemon.ToString() && !rack_.hidden_[i])
        return std::unique_ptr<ControlChannel>(std::make_unique<DirectChannel>(rack_[i]));
    return Status(StatusCode::kUnavailable, "no phub daemon answered at " + daemon.ToString());
  }
  // Calls to these stubs find no daemon.
  CheckpointStubs MakeCheckpointStubs(const Endpoint&) override {
    const auto channel = grpc::CreateChannel("127.0.0.1:1", grpc::InsecureChannelCredentials());
    return {.admin = v1::Admin::NewStub(channel), .session = v1::Session::NewStub(channel)};
  }

 private:
  FakeRack& rack_;
};

FakeRack::FakeRack(const std::vector<std::uint32_t>& core_counts, FakeDaemonOptions options)
    : hidden_(core_counts.size(), false) {
  for (std::uint32_t i = 0; i < core_counts.size(); ++i) {
    options.core_count = core_counts[i];
    options.position = i;
    if (core_counts.size() > 1) options.rack_cores = core_counts;
    daemons_.push_back(std::make_unique<FakeDaemon>(options));
  }
}

Result<Job> FakeRack::Join(JobOptions options, std::size_t through,
                           std::chrono::milliseconds call_timeout, DurationNs notice_after) {
  auto state = JobImpl::Join({.daemon = *ParseEndpoint(daemons_[through]->name()),
                              .call_timeout = call_timeout,
                              .options = std::move(options),
                              .connector = std::make_shared<DirectConnector>(*this),
                              .boot_id = FakeDaemon::kBootId,
                              .join_notice_after = notice_after});
  if (!state.ok()) return state.status();
  return JobAccess::Make(*std::move(state));
}

}  // namespace phub::client
