#include "server/control/rpc/sum_leases.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <cstring>
#include <utility>

#include "common/aggregation/endpoint_text.h"
#include "common/base/check.h"
#include "common/base/cpu_topology.h"
#include "common/base/shortage.h"
#include "common/base/status_text.h"
#include "phub/v1/aggregator.grpc.pb.h"

namespace phub::server {

using aggregation::LeaseNumber;

struct SumLeases::Stub {
  Stub(const std::string& target, const std::shared_ptr<grpc::ChannelCredentials>& credentials)
      : stub(v1::Aggregator::NewStub(MakePeerChannel(target, credentials))) {}
  std::unique_ptr<v1::Aggregator::Stub> stub;
};

namespace {

v1::GrantLeaseRequest RequestOf(const SumLeaseRequest& wanted, DurationNs keep_alive) {
  v1::GrantLeaseRequest request;
  request.set_tenant(wanted.tenant);
  request.set_job(wanted.job);
  request.set_slot_count(wanted.slot_count);
  request.set_count_max(wanted.count_max);
  request.set_core_loop(aggregation::TextOf(wanted.core_loop));
  for (const phub_endpoint& worker : wanted.workers)
    request.add_workers(aggregation::TextOf(worker));
  request.set_keep_alive_ms(static_cast<std::uint32_t>(keep_alive / kMillisecond));
  return request;
}

absl::StatusOr<phub_lease> LeaseOf(const std::string& asked, const SumLeaseRequest& wanted,
                                   const v1::GrantLeaseResponse& response) {
  phub_lease lease{};
  const auto aggregator = aggregation::ParseEndpoint(response.aggregator());
  if (response.number() == 0 || response.key().size() != sizeof lease.key.words ||
      !aggregator.ok()) {
    return absl::InternalError(
        fmt::format("phub-aggregator at {}: a lease with number {}, a key of {} bytes and address "
                    "\"{}\" is not valid",
                    asked, response.number(), response.key().size(), response.aggregator()));
  }
  lease.number = response.number();
  lease.slot_count = wanted.slot_count;
  lease.worker_count = static_cast<std::uint32_t>(wanted.workers.size());
  lease.count_max = wanted.count_max;
  std::memcpy(lease.key.words, response.key().data(), sizeof lease.key.words);
  lease.aggregator = *aggregator;
  lease.core_loop = wanted.core_loop;
  for (std::size_t i = 0; i < wanted.workers.size(); ++i) lease.workers[i] = wanted.workers[i];
  return lease;
}

}  // namespace

SumLeases::SumLeases(SumLeaseOptions options, const Clock& clock, Lost lost)
    : options_(std::move(options)), clock_(clock), lost_(std::move(lost)) {
  PHUB_CHECK(options_.call_timeout <= options_.keep_alive / 2, "call_timeout={} keep_alive={}",
             options_.call_timeout, options_.keep_alive);
}

SumLeases::~SumLeases() { Stop(); }

absl::Status SumLeases::Start() {
  return StartThread(thread_, "sum-leases", [this] {
    NameThisThread("sum-leases");
    Loop();
  });
}

void SumLeases::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (context_ != nullptr) context_->TryCancel();
  }
  posted_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void SumLeases::Post(Work work) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    waiting_.push_back(std::move(work));
  }
  posted_.notify_one();
}

void SumLeases::Grant(SumLeaseRequest request, Granted granted) {
  PHUB_CHECK(!request.workers.empty() && request.workers.size() <= PHUB_WORKERS_MAX, "workers={}",
             request.workers.size());
  Post([this, request = std::move(request), granted = std::move(granted)] {
    MakeGrant(request, granted);
  });
}

void SumLeases::End(LeaseNumber number) {
  Post([this, number] { MakeEnd(number); });
}

// Renewals come first when they are due, so that many grants cannot delay them.
void SumLeases::Loop() {
  TimeNs renewal = clock_.Now() + options_.renew_every;
  for (;;) {
    Work work;
    {
      std::unique_lock lock(mutex_);
      const auto wait = std::chrono::nanoseconds(std::max<DurationNs>(renewal - clock_.Now(), 0));
      posted_.wait_for(lock, wait, [this] { return stopping_ || !waiting_.empty(); });
      if (stopping_) return;
      if (!waiting_.empty() && clock_.Now() < renewal) {
        work = std::move(waiting_.front());
        waiting_.pop_front();
      }
    }
    if (work != nullptr) {
      work();
    } else if (clock_.Now() >= renewal) {
      Renew();
      renewal = clock_.Now() + options_.renew_every;
    }
  }
}

grpc::Status SumLeases::Connect() {
  if (stub_ != nullptr) return grpc::Status::OK;
  if (options_.aggregator.starts_with('/')) {
    stub_ =
        std::make_unique<Stub>("unix:" + options_.aggregator, grpc::InsecureChannelCredentials());
    return grpc::Status::OK;
  }
  const auto credentials = MakePeerCredentials(options_.credentials);
  if (!credentials.ok()) return {grpc::UNAVAILABLE, std::string(MessageOf(credentials.status()))};
  stub_ = std::make_unique<Stub>(options_.aggregator, *credentials);
  return grpc::Status::OK;
}

template <typename Function>
grpc::Status SumLeases::Call(Function&& function) {
  if (grpc::Status connected = Connect(); !connected.ok()) return connected;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::nanoseconds(options_.call_timeout));
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return {grpc::CANCELLED, "phubd is shutting down"};
    context_ = &context;
  }
  const grpc::Status status = function(&context);
  {
    const std::lock_guard lock(mutex_);
    context_ = nullptr;
  }
  // Calls over a channel that could not connect fail at once until gRPC has connected it again, and
  // without a call that waits, gRPC looks at the new connection only every 5 s. The first call over
  // a new channel waits for its connection.
  if (status.error_code() == grpc::UNAVAILABLE) stub_.reset();
  return status;
}

absl::Status SumLeases::Explain(const grpc::Status& status) const {
  const auto code = status.error_code();
  if (code == grpc::UNAVAILABLE || code == grpc::DEADLINE_EXCEEDED) {
    return absl::UnavailableError(fmt::format("phub-aggregator does not answer at {}: {}",
                                              options_.aggregator, status.error_message()));
  }
  return {static_cast<absl::StatusCode>(code),
          fmt::format("phub-aggregator at {}: {}", options_.aggregator, status.error_message())};
}

void SumLeases::MakeGrant(const SumLeaseRequest& wanted, const Granted& granted) {
  const v1::GrantLeaseRequest request = RequestOf(wanted, options_.keep_alive);
  v1::GrantLeaseResponse response;
  // The lease is at least as old at the aggregator.
  const TimeNs before = clock_.Now();
  const grpc::Status status = Call([&](grpc::ClientContext* context) {
    return stub_->stub->Grant(context, request, &response);
  });
  if (!status.ok()) return granted(Explain(status));
  const absl::StatusOr<phub_lease> lease = LeaseOf(options_.aggregator, wanted, response);
  if (lease.ok()) renewed_[LeaseNumber{lease->number}] = before;
  granted(lease);
}

void SumLeases::MakeEnd(LeaseNumber number) {
  if (renewed_.erase(number) == 0) return;
  v1::EndLeaseRequest request;
  request.set_number(number.value);
  v1::EndLeaseResponse response;
  // If the call fails, the lease ends because nobody renews it.
  (void)Call(
      [&](grpc::ClientContext* context) { return stub_->stub->End(context, request, &response); });
}

void SumLeases::Lose(LeaseNumber number, const absl::Status& why) {
  renewed_.erase(number);
  lost_(number, why);
}

void SumLeases::Renew() {
  if (renewed_.empty()) return;
  v1::RenewLeasesRequest request;
  for (const auto& [number, renewed] : renewed_) request.add_numbers(number.value);
  v1::RenewLeasesResponse response;
  const TimeNs before = clock_.Now();
  const grpc::Status status = Call([&](grpc::ClientContext* context) {
    return stub_->stub->Renew(context, request, &response);
  });
  if (status.error_code() == grpc::CANCELLED) return;  // Stop()
  if (status.ok()) {
    for (auto& [number, renewed] : renewed_) renewed = before;
    for (const std::uint32_t number : response.unknown()) {
      if (!renewed_.contains(LeaseNumber{number})) continue;
      Lose(LeaseNumber{number},
           absl::AbortedError(fmt::format("phub-aggregator at {} does not know lease {}; it has "
                                          "probably been restarted",
                                          options_.aggregator, number)));
    }
    return;
  }
  const bool is_gone = status.error_code() == grpc::UNAVAILABLE;
  std::vector<LeaseNumber> lost;
  for (const auto& [number, renewed] : renewed_) {
    if (is_gone || clock_.Now() - renewed >= options_.keep_alive / 2) lost.push_back(number);
  }
  for (const LeaseNumber number : lost) Lose(number, Explain(status));
}

}  // namespace phub::server
