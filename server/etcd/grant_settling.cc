// How the grants thread changes this daemon's grant of a tenant's quotas, see grant_keeper.h.
#include <fmt/format.h>

#include <algorithm>

#include "common/base/log.h"
#include "common/base/printable.h"
#include "common/base/status_text.h"
#include "common/base/units.h"
#include "server/etcd/cluster.h"
#include "server/etcd/grant_keeper.h"

namespace phub::server::etcd {
namespace {

// Other daemons may change their grants first; each time this one reads them again.
constexpr int kSettlesMax = 20;
constexpr std::size_t kNamedDaemonsMax = 8;
constexpr std::size_t kDaemonBytesShown = 63;

bool HasFree(const Usage& grant, const Usage& charged) {
  return std::ranges::any_of(kGrantedResources, [&](Resource resource) {
    return At(grant, resource) > At(charged, resource);
  });
}

Usage Least(const Usage& left, const Usage& right) {
  Usage least;
  for (const Resource resource : kGrantedResources)
    At(least, resource) = std::min(At(left, resource), At(right, resource));
  return least;
}

void AddTo(Usage& sum, const Usage& more) {
  for (const Resource resource : kGrantedResources) At(sum, resource) += At(more, resource);
}

bool IsAbove(const Quota& quota, const Usage& sum) {
  return std::ranges::any_of(kGrantedResources, [&](Resource resource) {
    const auto limit = LimitOf(quota, resource);
    return limit && At(sum, resource) > *limit;
  });
}

std::string Text(std::uint64_t amount, Resource resource) {
  return resource == Resource::kMemory ? HumanBytes(amount) : fmt::format("{}", amount);
}

// "it needs 1 job, tenant acme may have 8 in the whole cluster, and daemons hold 8: node1 5, node2
// 3. End another job, or raise the quota".
absl::Status Refusal(const std::string& tenant, const Quota& quota,
                     const std::vector<Resource>& lacking, const Usage& more,
                     const std::vector<std::pair<std::string, Usage>>& daemons) {
  std::string text;
  for (const Resource resource : lacking) {
    std::uint64_t sum = 0;
    std::string holders;
    std::size_t count = 0;
    for (const auto& [daemon, held] : daemons) {
      const std::uint64_t amount = At(held, resource);
      sum += amount;
      if (amount == 0 || ++count > kNamedDaemonsMax) continue;
      holders += fmt::format("{}{} {}", holders.empty() ? "" : ", ",
                             Printable(daemon, kDaemonBytesShown), Text(amount, resource));
    }
    if (count > kNamedDaemonsMax)
      holders += fmt::format(" and {} more daemons", count - kNamedDaemonsMax);
    text += fmt::format(
        "{}it needs {}, tenant {} may have {} in the whole cluster, and daemons hold {}: {}",
        text.empty() ? "" : "; ", Describe(At(more, resource), resource), tenant,
        Text(LimitOf(quota, resource).value_or(0), resource), Text(sum, resource),
        holders.empty() ? "none" : holders);
  }
  return absl::ResourceExhaustedError(text + ". End another job, or raise the quota");
}

}  // namespace

absl::Status GrantKeeper::CheckReady() const {
  if (absl::Status status = loop_.reachable(); !status.ok()) {
    return absl::UnavailableError(
        fmt::format("this daemon's part of the cluster's quota does not cover it, and cannot be "
                    "enlarged: {}",
                    MessageOf(status)));
  }
  if (place_.lease() != 0) return absl::OkStatus();
  return absl::UnavailableError(fmt::format(
      "this daemon has no part of the cluster's quotas now: {}",
      place_fault_.ok() ? "its lease in etcd has ended" : std::string(MessageOf(place_fault_))));
}

GrantKeeper::Waiters GrantKeeper::WaitersOf(const std::string& tenant) const {
  const std::lock_guard lock(mutex_);
  const auto found = waiting_.find(tenant);
  return found == waiting_.end() ? Waiters() : found->second;
}

// Without waiting reservations there is mostly nothing to do, and etcd is not asked.
bool GrantKeeper::NeedsSettling(const std::string& tenant) {
  Ledger::GrantUse use;
  with_ledger_([&](Ledger& ledger) { use = ledger.GrantUseOf(tenant); });
  const std::lock_guard lock(mutex_);
  if (waiting_.contains(tenant) || removals_.contains(tenant) || use.leaving) return true;
  const auto found = known_.find(tenant);
  GrantRecord own;
  Usage sum;
  bool others_want = false;
  if (found != known_.end()) {
    for (const auto& [daemon, grant] : found->second) {
      AddTo(sum, grant.amount);
      if (daemon == place_.self().id) {
        own = grant;
      } else {
        others_want = others_want || grant.wanted;
      }
    }
  }
  if (own.wanted || !own.removal.empty() || own.amount != use.grant) return true;
  if ((others_want || IsAbove(use.quota, sum)) && HasFree(use.grant, use.charged)) return true;
  return std::ranges::any_of(kGrantedResources, [&](Resource resource) {
    if (!LimitOf(use.quota, resource)) return At(use.grant, resource) > 0;
    return At(use.charged, resource) > At(use.grant, resource);
  });
}

void GrantKeeper::Settle(const std::string& tenant) {
  {
    const std::lock_guard lock(mutex_);
    queued_.erase(tenant);
  }
  if (absl::Status ready = CheckReady(); !ready.ok()) return RefuseAll(tenant, ready);
  if (!NeedsSettling(tenant)) return;
  for (int i = 0; i < kSettlesMax; ++i) {
    const Waiters waiters = WaitersOf(tenant);
    const auto shares = Read(tenant);
    absl::Status status = shares.status();
    if (status.ok()) {
      GrantRecord grant{tenant, place_.self().id, {}, false, shares->removal, {}};
      const GrantPlan plan = Plan(tenant, *shares, waiters, grant.used);
      grant.amount = plan.grant;
      grant.wanted = plan.is_short;
      const auto written = Write(grant, *shares);
      status = written.status();
      if (written.ok() && *written) return Finish(tenant, *shares, plan, waiters);
    }
    if (absl::IsUnavailable(status)) loop_.NoteUnreachable(status);
    if (!status.ok()) return RefuseAll(tenant, status);
  }
  Queue(tenant);
}

absl::StatusOr<GrantKeeper::Shares> GrantKeeper::Read(const std::string& tenant) {
  pb::TxnRequest request;
  *request.add_success() = Get(Full(GrantsOfTenant(tenant)));
  pb::RangeRequest& grants = *request.mutable_success(0)->mutable_request_range();
  grants.set_range_end(EndOf(grants.key()));
  *request.add_success() = Get(Full(TenantKey(tenant)));
  *request.add_success() = Get(Full(DaemonKey(place_.self().id)));
  *request.add_success() = Get(Full(RemovalKey(tenant)));
  const auto answer = client_.Txn(request);
  if (!answer.ok()) return answer.status();
  const pb::RangeResponse& self = answer->responses(2).response_range();
  if (self.kvs().empty() || self.kvs(0).mod_revision() != place_.revision()) {
    place_.Leave();  // it is taken again at the next tick
    kept_at_ = 0;
    return absl::AbortedError("this daemon has lost its place in the cluster; try again");
  }
  Shares shares;
  shares.revision = answer->header().revision();
  if (const pb::RangeResponse& found = answer->responses(3).response_range();
      !found.kvs().empty()) {
    const auto removal = records_.ToRemoval(RemovalKey(tenant), found.kvs(0).value());
    if (removal.ok()) shares.removal = removal->id;
    shares.removal_revision = found.kvs(0).mod_revision();
  }
  for (const pb::KeyValue& pair : answer->responses(0).response_range().kvs()) {
    // A tenant with a damaged record can be deleted.
    const absl::Status added = AddGrant(pair, tenant, shares);
    if (!added.ok() && shares.removal.empty()) return added;
  }
  const pb::RangeResponse& record = answer->responses(1).response_range();
  if (record.kvs().empty()) return shares;
  const auto read = records_.ToTenant(TenantKey(tenant), record.kvs(0).value());
  if (!read.ok() && shares.removal.empty()) {
    return absl::FailedPreconditionError(
        fmt::format("tenant {}: {}", tenant, MessageOf(read.status())));
  }
  shares.tenant_revision = record.kvs(0).mod_revision();
  if (read.ok()) shares.quota = read->quota;
  return shares;
}

absl::Status GrantKeeper::AddGrant(const pb::KeyValue& pair, const std::string& tenant,
                                   Shares& shares) const {
  const std::string key = pair.key().substr(place_.prefix().size());
  const auto grant = records_.ToGrant(key, pair.value());
  if (!grant.ok()) {
    return absl::FailedPreconditionError(fmt::format(
        "nobody gets more of tenant {}'s quotas: {} {}. Remove the record, or restore it", tenant,
        Printable(key, kDaemonBytesShown + tenant.size() + kGrantKeys.size() + 1),
        MessageOf(grant.status())));
  }
  shares.daemons.emplace_back(grant->daemon, grant->amount);
  if (grant->daemon == place_.self().id) {
    shares.own = *grant;
    shares.has_own = true;
  } else {
    AddTo(shares.others, grant->amount);
    shares.others_want = shares.others_want || grant->wanted;
  }
  return absl::OkStatus();
}

GrantPlan GrantKeeper::Plan(const std::string& tenant, const Shares& shares, const Waiters& waiters,
                            Usage& used) {
  const bool leaves = !shares.removal.empty();
  GrantQuestion question;
  question.quota = shares.quota;
  question.others = shares.others;
  question.others_want = shares.others_want || leaves;  // keep what the jobs use, and no more
  question.held = shares.own.amount;
  for (const auto& waiter : waiters) question.waiting.push_back(waiter->more);
  if (leaves) {
    leaving_.insert(tenant);
  } else {
    leaving_.erase(tenant);
  }
  GrantPlan plan;
  with_ledger_([&](Ledger& ledger) {
    // If etcd has no tenant any more, the ledger may have it for another moment, without new jobs.
    if (leaves || shares.tenant_revision != 0) ledger.SetLeaving(tenant, leaves);
    if (leaves) used = ledger.UsageOf(tenant);
    const Ledger::GrantUse use = ledger.GrantUseOf(tenant);
    question.charged = use.charged;
    plan = PlanGrant(question);
    // What is about to be given back, or is not in etcd, must not be used from now on.
    ledger.SetGrant(tenant, Least(Least(use.grant, plan.grant), shares.own.amount));
  });
  return plan;
}

absl::StatusOr<bool> GrantKeeper::Write(const GrantRecord& grant, const Shares& shares) {
  const bool is_empty = grant.amount == Usage{} && !grant.wanted && grant.removal.empty();
  if (is_empty && !shares.has_own) return true;
  if (shares.has_own && shares.own == grant) return true;
  const std::string key = Full(GrantKey(grant.tenant, grant.daemon));
  pb::TxnRequest request;
  *request.add_compare() = HasRevision(Full(kClusterKey), place_.cluster_revision());
  *request.add_compare() = HasRevision(Full(DaemonKey(grant.daemon)), place_.revision());
  *request.add_compare() = HasRevision(Full(TenantKey(grant.tenant)), shares.tenant_revision);
  *request.add_compare() = HasRevision(Full(RemovalKey(grant.tenant)), shares.removal_revision);
  pb::Compare& unchanged = *request.add_compare();
  unchanged = HasRevision(Full(GrantsOfTenant(grant.tenant)), shares.revision + 1);
  unchanged.set_range_end(EndOf(unchanged.key()));
  unchanged.set_result(pb::Compare::LESS);
  if (is_empty) {
    request.add_success()->mutable_request_delete_range()->set_key(key);
  } else {
    *request.add_success() = Put(key, records_.OfGrant(grant));
    request.mutable_success(0)->mutable_request_put()->set_lease(place_.lease());
  }
  const auto answer = client_.Txn(request);
  if (absl::IsNotFound(answer.status())) {
    kept_at_ = 0;  // the place is taken again at the next tick
    return absl::AbortedError("this daemon's lease in etcd has ended; try again");
  }
  if (!answer.ok()) return answer.status();
  if (!answer->succeeded()) return false;
  Usage sum = shares.others;
  AddTo(sum, grant.amount);
  if (IsAbove(shares.quota, sum) && HasFree(grant.amount, shares.own.amount)) {
    LogWarning(
        "event=grants_above_quota tenant={} daemon={} grant=\"{}\" sum=\"{}\" effect=\"jobs go on, "
        "new reservations are refused\"",
        grant.tenant, grant.daemon, Describe(grant.amount), Describe(sum));
  }
  const std::lock_guard lock(mutex_);
  if (is_empty) {
    known_[grant.tenant].erase(grant.daemon);
  } else {
    known_[grant.tenant][grant.daemon] = grant;
  }
  return true;
}

void GrantKeeper::Finish(const std::string& tenant, const Shares& shares, const GrantPlan& plan,
                         const Waiters& waiters) {
  with_ledger_([&](Ledger& ledger) { ledger.SetGrant(tenant, plan.grant); });
  if (plan.is_short) {
    wanted_at_[tenant] = clock_.Now();
  } else {
    wanted_at_.erase(tenant);
  }
  auto lacking = plan.lacking.begin();
  for (const auto& waiter : waiters) {
    const std::vector<Resource>& its = *lacking++;
    if (its.empty()) {
      Answer(tenant, waiter, absl::OkStatus());
    } else if (clock_.Now() >= waiter->deadline) {
      Answer(tenant, waiter, Refusal(tenant, shares.quota, its, waiter->more, shares.daemons));
    }
  }
}

void GrantKeeper::Answer(const std::string& tenant, const std::shared_ptr<Waiter>& waiter,
                         const absl::Status& status) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = waiting_.find(tenant);
    if (found == waiting_.end() || std::erase(found->second, waiter) == 0) return;
    if (found->second.empty()) waiting_.erase(found);
  }
  with_ledger_([&](Ledger&) { waiter->then(status); });
}

void GrantKeeper::RefuseAll(const std::string& tenant, const absl::Status& status) {
  for (const auto& waiter : WaitersOf(tenant)) Answer(tenant, waiter, status);
}

}  // namespace phub::server::etcd
