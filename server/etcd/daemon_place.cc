#include "server/etcd/daemon_place.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "common/base/log.h"
#include "common/base/printable.h"
#include "common/base/status_text.h"
#include "common/base/version.h"
#include "server/etcd/cluster.h"

namespace phub::server::etcd {
namespace {

constexpr int kAttemptsMax = 5;
constexpr DurationNs kLook = 500 * kMillisecond;
// A daemon that lives has kept its lease alive in this time, even if etcd's leader has changed.
constexpr DurationNs kWatchedFor = 8 * kSecond;
constexpr DurationNs kMargin = kSecond;  // clocks of two hosts do not run equally fast
constexpr std::size_t kNameBytesShown = 100;

}  // namespace

ClusterMember DaemonPlace::SelfOf(const PlaceOptions& options) {
  return {.place = options.place,
          .daemon = options.self.id,
          .instance = options.self.instance,
          .host = options.self.host,
          .endpoint = options.self.endpoint,
          .version = BuildVersion(),
          .started_at = options.self.started_at};
}

absl::Status DaemonPlace::Take() {
  lease_ = 0;
  for (int i = 0; i < kAttemptsMax; ++i) {
    const TimeNs asked_at = clock_.Now();
    const auto lease = client_.GrantLease(options_.grace);
    if (!lease.ok()) return lease.status();
    std::int64_t other_lease = 0;
    std::string other;
    bool taken = false;
    absl::Status status = TryToTake(lease->id(), other_lease, other, taken);
    if (taken) status = seat_.Claim(lease->id());
    if (taken && status.ok()) {
      lease_ = lease->id();
      end_ = asked_at + lease->ttl() * kSecond - kMargin;
      return status;
    }
    static_cast<void>(client_.RevokeLease(lease->id()));  // otherwise it ends by itself
    if (status.ok() && !taken) status = AwaitEndOf(other_lease, other);
    if (!status.ok()) return status;
  }
  return absl::UnavailableError(
      fmt::format("daemon {} could not take its place in the cluster", options_.self.id));
}

// other_lease: of another instance that has the place; 0: none.
absl::Status DaemonPlace::TryToTake(std::int64_t lease, std::int64_t& other_lease,
                                    std::string& other, bool& taken) {
  const std::string name = DaemonKey(options_.self.id);
  const std::string key = options_.prefix + name;
  pb::TxnRequest request;
  *request.add_compare() =
      HasRevision(options_.prefix + std::string(kClusterKey), options_.cluster_revision);
  *request.add_compare() = HasRevision(key, 0);
  pb::RequestOp& put = *request.add_success();
  put = Put(key, records_.OfDaemon(options_.self));
  put.mutable_request_put()->set_lease(lease);
  *request.add_failure() = Get(key);
  const auto answer = client_.Txn(request);
  if (!answer.ok()) return answer.status();
  if (answer->succeeded()) {
    revision_ = answer->header().revision();
    taken = true;
    return absl::OkStatus();
  }
  const pb::RangeResponse& found = answer->responses(0).response_range();
  if (found.kvs().empty()) {
    return absl::FailedPreconditionError(
        fmt::format("etcd has another cluster below {} than when phubd started; restart phubd",
                    options_.prefix));
  }
  const auto record = records_.ToDaemon(name, found.kvs(0).value());
  if (!record.ok()) {
    return absl::Status(record.status().code(),
                        fmt::format("{} {}", name, MessageOf(record.status())));
  }
  other = fmt::format("{} on host {}", Printable(record->endpoint, kNameBytesShown),
                      Printable(record->host, kNameBytesShown));
  const std::int64_t its_lease = found.kvs(0).lease();
  if (record->instance == options_.self.instance || its_lease == 0) {
    // An earlier attempt, whose answer was lost; or a record that no daemon has made.
    pb::TxnRequest removal;
    *removal.add_compare() = HasRevision(key, found.kvs(0).mod_revision());
    removal.add_success()->mutable_request_delete_range()->set_key(key);
    return client_.Txn(removal).status();
  }
  other_lease = its_lease;
  return absl::OkStatus();
}

absl::Status DaemonPlace::AwaitEndOf(std::int64_t lease, const std::string& other) {
  if (lease == 0) return absl::OkStatus();  // it was removed
  const TimeNs begun_at = clock_.Now();
  for (;;) {
    const auto left = client_.TimeLeftOf(lease);
    if (!left.ok() && !absl::IsNotFound(left.status())) return left.status();
    if (!left.ok() || left->left == 0 || left->left < left->granted - kSilentMax) {
      LogInfo("event=daemon_place_taken id={} from=\"{}\"", options_.self.id, other);
      return client_.RevokeLease(lease);
    }
    if (clock_.Now() - begun_at >= kWatchedFor) {
      return absl::AlreadyExistsError(fmt::format(
          "daemon id {} is used by two daemons: {} runs, and this one is {} on host {}. Set "
          "another daemon_id, or remove the copied file next to token_key",
          options_.self.id, other, options_.self.endpoint, options_.self.host));
    }
    std::this_thread::sleep_for(std::chrono::nanoseconds(kLook));
  }
}

absl::Status DaemonPlace::Keep() {
  if (lease_ == 0) return absl::NotFoundError("this daemon has no place in the cluster");
  const TimeNs asked_at = clock_.Now();
  const auto left = client_.KeepLeaseAlive(lease_);
  if (!left.ok()) return left.status();
  if (*left > 0) {
    end_ = asked_at + *left - kMargin;
    return absl::OkStatus();
  }
  lease_ = 0;
  end_ = 0;
  return absl::NotFoundError("this daemon's lease in etcd has ended");
}

void DaemonPlace::Leave() {
  if (lease_ == 0) return;
  const absl::Status status = client_.RevokeLease(lease_);
  if (!status.ok()) LogWarning("event=daemon_place_kept error=\"{}\"", MessageOf(status));
  lease_ = 0;
}

}  // namespace phub::server::etcd
