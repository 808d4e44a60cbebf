// Leases of a phub-aggregator (docs/aggregation.md): grants them, renews them, and notices when
// they are lost. One thread makes all calls, so callers never wait for the aggregator.
//
// A lease is lost
//   - at once, if the connection to the aggregator is lost, or if it does not know the lease: the
//     aggregator has probably been restarted;
//   - after half of `keep_alive`, if the aggregator does not answer. So a lease is lost here before
//     it ends there, and no other job has its slots while this one still uses them.
// A lost lease is not renewed any more. An aggregator that still has it ends it after `keep_alive`.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/aggregation/packet.h"
#include "common/aggregation/stream.h"
#include "common/base/clock.h"
#include "server/control/lanes/sum_network.h"
#include "server/control/rpc/peer_channel.h"

namespace grpc {
class ClientContext;
class Status;
}  // namespace grpc

namespace phub::server {

struct SumLeaseOptions {
  std::string aggregator;            // the path of its control socket, or "host:port" with TLS
  PeerCredentials credentials = {};  // for "host:port"
  DurationNs keep_alive = 10 * kSecond;
  DurationNs renew_every = 500 * kMillisecond;
  DurationNs call_timeout = 2 * kSecond;  // at most keep_alive / 2
};

class SumLeases {
 public:
  // Both are called on the thread of the leases, without a lock. They must not call Stop().
  using Granted = std::function<void(const absl::StatusOr<phub_lease>&)>;
  using Lost = std::function<void(aggregation::LeaseNumber, const absl::Status& why)>;

  // `clock` must outlive it.
  SumLeases(SumLeaseOptions options, const Clock& clock, Lost lost);
  ~SumLeases();  // Stop()
  SumLeases(const SumLeases&) = delete;
  SumLeases& operator=(const SumLeases&) = delete;

  // RESOURCE_EXHAUSTED: the process lacks threads.
  absl::Status Start();
  // Cancels the call under way. Calls that wait are dropped, and `granted` is not called for them.
  // The aggregator ends all leases after `keep_alive`.
  void Stop();

  // Any thread. Calls `granted` once, with the lease, or with an error that names the aggregator:
  // kUnavailable if it does not answer, otherwise its refusal.
  void Grant(SumLeaseRequest request, Granted granted);
  // Any thread. Nothing happens if the lease has ended or is lost. Lost may be called for it until
  // the call was made.
  void End(aggregation::LeaseNumber number);

 private:
  struct Stub;
  // UNAVAILABLE: the files of the credentials cannot be read.
  grpc::Status Connect();
  using Work = std::function<void()>;

  void Post(Work work);
  void Loop();
  void MakeGrant(const SumLeaseRequest& request, const Granted& granted);
  void MakeEnd(aggregation::LeaseNumber number);
  void Renew();
  void Lose(aggregation::LeaseNumber number, const absl::Status& why);
  // Makes one call with the timeout, unless the owner stops.
  template <typename Function>
  grpc::Status Call(Function&& function);
  absl::Status Explain(const grpc::Status& status) const;

  const SumLeaseOptions options_;
  const Clock& clock_;
  const Lost lost_;
  std::unique_ptr<Stub> stub_;
  std::map<aggregation::LeaseNumber, TimeNs> renewed_;  // when, by lease; the thread's
  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<Work> waiting_;                // under mutex_
  grpc::ClientContext* context_ = nullptr;  // the call under way; under mutex_
  bool stopping_ = false;                   // under mutex_
  std::thread thread_;
};

}  // namespace phub::server
