#include "server/etcd/removal.h"

#include <fmt/format.h>

#include <chrono>
#include <map>
#include <thread>

#include "common/base/printable.h"
#include "server/etcd/cluster.h"

namespace phub::server::etcd {
namespace {

// A daemon that is connected answers within milliseconds.
constexpr DurationNs kAnswerMax = 3 * kSecond;
constexpr DurationNs kAnswerLook = 10 * kMillisecond;
// Longer than all attempts to delete the tenant.
constexpr DurationNs kLease = 15 * kSecond;
constexpr std::size_t kDaemonNameShown = 100;

}  // namespace

Removal::~Removal() {
  if (lease_ != 0) static_cast<void>(client_.RevokeLease(lease_));  // otherwise it ends by itself
}

absl::Status Removal::Begin() {
  const auto lease = client_.GrantLease(kLease);
  if (!lease.ok()) return lease.status();
  lease_ = lease->id();
  deadline_ = clock_.Now() + kAnswerMax;
  const std::string name = RemovalKey(record_.tenant);
  pb::TxnRequest request;
  *request.add_compare() = HasRevision(Full(kClusterKey), cluster_revision_);
  *request.add_compare() = HasRevision(Full(name), 0);
  *request.add_success() = Put(Full(name), records_.OfRemoval(record_));
  request.mutable_success(0)->mutable_request_put()->set_lease(lease_);
  *request.add_failure() = Get(Full(name));
  const auto answer = client_.Txn(request);
  if (!answer.ok()) return answer.status();
  if (answer->succeeded()) {
    revision_ = answer->header().revision();
    return absl::OkStatus();
  }
  const pb::RangeResponse& found = answer->responses(0).response_range();
  if (found.kvs().empty()) {
    return absl::FailedPreconditionError(fmt::format(
        "etcd has another cluster below {} than when phubd started; restart phubd", prefix_));
  }
  const auto other = records_.ToRemoval(name, found.kvs(0).value());
  if (other.ok() && other->id == record_.id) {  // the answer to the first attempt was lost
    revision_ = found.kvs(0).mod_revision();
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(fmt::format(
      "tenant {} was not deleted: {} deletes it at the moment; try again", record_.tenant,
      other.ok() ? "daemon " + Printable(other->daemon, kDaemonNameShown) : "another daemon"));
}

absl::StatusOr<std::vector<RemovalAnswer>> Removal::ReadAnswers() {
  pb::TxnRequest request;
  *request.add_success() = Get(Full(RemovalKey(record_.tenant)));
  for (const std::string& range : {GrantsOfTenant(record_.tenant), std::string(kDaemonKeys)}) {
    pb::RequestOp& all = *request.add_success();
    all = Get(Full(range));
    all.mutable_request_range()->set_range_end(EndOf(Full(range)));
  }
  const auto answer = client_.Txn(request);
  if (!answer.ok()) return answer.status();
  const pb::RangeResponse& removal = answer->responses(0).response_range();
  if (removal.kvs().empty() || removal.kvs(0).mod_revision() != revision_) {
    return absl::AbortedError(
        fmt::format("tenant {} was not deleted, it took too long; try again", record_.tenant));
  }
  read_at_ = answer->header().revision();
  std::map<std::string, GrantRecord> grants;
  for (const pb::KeyValue& pair : answer->responses(1).response_range().kvs()) {
    const std::string key = pair.key().substr(prefix_.size());
    // A running daemon replaces its record if it is damaged, and others do not count.
    if (auto grant = records_.ToGrant(key, pair.value()); grant.ok())
      grants[grant->daemon] = *std::move(grant);
  }
  std::vector<RemovalAnswer> answers;
  for (const pb::KeyValue& pair : answer->responses(2).response_range().kvs()) {
    const std::string key = pair.key().substr(prefix_.size());
    const std::string id = key.substr(kDaemonKeys.size());
    RemovalAnswer& one = answers.emplace_back();
    one.daemon = Printable(id, kDaemonNameShown);
    if (const auto daemon = records_.ToDaemon(key, pair.value()); daemon.ok()) {
      one.daemon += fmt::format(" ({} on host {})", Printable(daemon->endpoint, kDaemonNameShown),
                                Printable(daemon->host, kDaemonNameShown));
    }
    const auto grant = grants.find(id);
    if (grant == grants.end() || grant->second.removal != record_.id) continue;
    one.given = true;
    one.used = grant->second.used;
  }
  return answers;
}

absl::Status Removal::Await() {
  for (;;) {
    const bool has_time = clock_.Now() < deadline_;
    const auto answers = ReadAnswers();
    if (!answers.ok()) return answers.status();
    const auto agreed = PlanRemoval(record_.tenant, *answers, has_time);
    if (!agreed.ok()) return agreed.status();
    if (*agreed) return absl::OkStatus();
    std::this_thread::sleep_for(std::chrono::nanoseconds(kAnswerLook));
  }
}

void Removal::AddTo(pb::TxnRequest& request) const {
  const std::string removal = Full(RemovalKey(record_.tenant));
  *request.add_compare() = HasRevision(removal, revision_);
  for (const std::string& range : {GrantsOfTenant(record_.tenant), std::string(kDaemonKeys)}) {
    pb::Compare& unchanged = *request.add_compare();
    unchanged = HasRevision(Full(range), read_at_ + 1);
    unchanged.set_range_end(EndOf(Full(range)));
    unchanged.set_result(pb::Compare::LESS);
  }
  request.add_success()->mutable_request_delete_range()->set_key(removal);
  pb::DeleteRangeRequest& grants = *request.add_success()->mutable_request_delete_range();
  grants.set_key(Full(GrantsOfTenant(record_.tenant)));
  grants.set_range_end(EndOf(grants.key()));
}

}  // namespace phub::server::etcd
