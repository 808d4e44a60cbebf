// A client of etcd's v3 API. It has one channel per endpoint. A call waits less than a second for
// an endpoint and then asks the next one, so an endpoint that hangs delays a call, but does not
// stop it. Any thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "etcd/rpc.grpc.pb.h"

namespace phub::server::etcd {

namespace pb = ::etcdserverpb;

// etcd's limit.
inline constexpr int kOperationsMax = 128;
// How long a call waits for one endpoint, and for all of them together.
inline constexpr DurationNs kAttempt = 800 * kMillisecond;
inline constexpr DurationNs kCallMax = 2500 * kMillisecond;

struct ClientOptions {
  std::vector<std::string> endpoints;  // "https://a:2379", "http://127.0.0.1:2379"
  // PEM files for https. Empty ca: the system's authorities.
  std::string ca;
  std::string certificate;
  std::string key;
};

// "http://a:2379,https://b:2379" as a list. INVALID_ARGUMENT says what is wrong.
absl::StatusOr<std::vector<std::string>> ParseEndpoints(const std::string& text);

// A stream of changes. One thread, except Cancel: any thread.
class WatchStream {
 public:
  // False: the stream has ended; status() says why.
  bool Next(pb::WatchResponse& response);
  void Cancel() { context_.TryCancel(); }
  absl::Status status();

 private:
  friend class Client;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<pb::WatchRequest, pb::WatchResponse>> stream_;
  std::string endpoint_;
};

class Client {
 public:
  // REQUIRES: an endpoint, and files that CheckFiles accepts (etcd_store.h).
  explicit Client(const ClientOptions& options);

  // UNAVAILABLE: no endpoint has answered; the message has the reason of each. A transaction that
  // fails may have been made.
  absl::StatusOr<pb::RangeResponse> Range(const pb::RangeRequest& request);
  absl::StatusOr<pb::TxnResponse> Txn(const pb::TxnRequest& request);
  // A lease whose keys etcd removes when it has not been kept alive for that long.
  absl::StatusOr<pb::LeaseGrantResponse> GrantLease(DurationNs duration);
  // The time that is left then; 0: there is no such lease any more.
  absl::StatusOr<DurationNs> KeepLeaseAlive(std::int64_t lease);
  struct LeaseTime {
    DurationNs left = 0;
    DurationNs granted = 0;
  };
  absl::StatusOr<LeaseTime> TimeLeftOf(std::int64_t lease);
  // And removes its keys. OK if there is no such lease.
  absl::Status RevokeLease(std::int64_t lease);
  // Starts to watch. The stream ends if its endpoint loses contact with the leader.
  std::unique_ptr<WatchStream> Watch(const pb::WatchRequest& request);
  // Calls ask another endpoint first from now on.
  void AvoidEndpoint() { ++first_; }

 private:
  struct Endpoint {
    std::string url;
    std::unique_ptr<pb::KV::Stub> kv;
    std::unique_ptr<pb::Watch::Stub> watch;
    std::unique_ptr<pb::Lease::Stub> lease;
  };
  template <typename Response, typename Ask>
  absl::StatusOr<Response> Call(Ask ask);
  Endpoint& EndpointAt(std::size_t place) { return endpoints_[place % endpoints_.size()]; }

  std::vector<Endpoint> endpoints_;
  std::atomic<std::size_t> first_ = 0;  // the endpoint that is asked first, modulo their number
};

}  // namespace phub::server::etcd
