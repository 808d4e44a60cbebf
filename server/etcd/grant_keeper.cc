// The grants thread, and what other threads call. grant_settling.cc changes a tenant's grant.
#include "server/etcd/grant_keeper.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "common/base/log.h"
#include "common/base/printable.h"
#include "common/base/status_text.h"

namespace phub::server::etcd {
namespace {

constexpr DurationNs kGrantTick = 100 * kMillisecond;
// How long a reservation waits for other daemons to give back what they do not use.
constexpr DurationNs kGiveBackMax = 2 * kSecond;
constexpr DurationNs kWantedMin = kSecond;
constexpr std::size_t kWaitersMax = 4096;
constexpr std::size_t kWaitersOfTenantMax = 1024;
constexpr std::size_t kGrantKeyBytesShown = 200;
// How long a start waits until the daemon knows what was changed before it took its place.
constexpr DurationNs kOpenMax = 2 * kSecond;
constexpr DurationNs kOpenLook = 5 * kMillisecond;

}  // namespace

GrantKeeper::~GrantKeeper() {
  Stop();
  place_.Leave();  // if it was claimed, and Start was not called or failed
}

absl::Status GrantKeeper::Claim() {
  const TimeNs now = clock_.Now();
  if (place_.lease() != 0 && now - kept_at_ < kKeepPeriod) return absl::OkStatus();
  kept_at_ = now;
  absl::Status kept = place_.lease() == 0 ? absl::NotFoundError("") : place_.Keep();
  return absl::IsNotFound(kept) ? place_.Take() : kept;
}

absl::Status GrantKeeper::Start(WithLedger with_ledger) {
  with_ledger_ = std::move(with_ledger);
  if (place_.lease() == 0) place_fault_ = place_.Take();
  // Without etcd the daemon serves, and the thread takes the place later.
  if (!place_fault_.ok() && !absl::IsUnavailable(place_fault_)) return place_fault_;
  kept_at_ = clock_.Now();
  with_ledger_([this](Ledger& ledger) {
    ledger.UseGrants(clock_);
    ledger.SetGrantsEnd(0);
  });
  const TimeNs end = clock_.Now() + kOpenMax;
  for (OpenPlace(); place_.lease() != 0 && !opened_ && clock_.Now() < end; OpenPlace())
    std::this_thread::sleep_for(std::chrono::nanoseconds(kOpenLook));
  thread_ = std::make_unique<WorkThread>("grants");
  if (!thread_->started().ok()) return thread_->started();
  {
    const std::lock_guard lock(mutex_);
    running_ = true;
  }
  QueueRemovals();
  thread_->RunEvery(kGrantTick, [this] { Tick(); });
  LogInfo("event=daemon_place id={} grace_s={}", place_.self().id,
          (place_.end() - clock_.Now()) / kSecond);
  return absl::OkStatus();
}

void GrantKeeper::Stop() {
  std::map<std::string, Waiters> left;
  {
    const std::lock_guard lock(mutex_);
    if (!running_) return;
    running_ = false;
    left.swap(waiting_);
  }
  with_ledger_([&](Ledger&) {
    for (const auto& [tenant, waiters] : left) {
      for (const auto& waiter : waiters) waiter->then(absl::UnavailableError("phubd is stopping"));
    }
  });
  thread_->Finish();
  place_.Leave();
}

void GrantKeeper::Ask(const std::string& tenant, const Usage& more, Then then) {
  absl::Status refused = absl::UnavailableError("phubd is stopping");
  {
    const std::lock_guard lock(mutex_);
    std::size_t all = 0;
    for (const auto& [name, waiters] : waiting_) all += waiters.size();
    Waiters& waiters = waiting_[tenant];
    if (running_ && waiters.size() < kWaitersOfTenantMax && all < kWaitersMax) {
      waiters.push_back(
          std::make_shared<Waiter>(Waiter{more, clock_.Now() + kGiveBackMax, std::move(then)}));
      refused = absl::OkStatus();
    } else if (running_) {
      refused = absl::ResourceExhaustedError(fmt::format(
          "{} reservations of tenant {} wait for a part of the cluster's quota already; try again",
          waiters.size(), tenant));
    }
    if (waiters.empty()) waiting_.erase(tenant);
  }
  if (!refused.ok()) return then(refused);
  Queue(tenant);
}

void GrantKeeper::Queue(const std::string& tenant) {
  const std::lock_guard lock(mutex_);
  if (!running_ || !queued_.insert(tenant).second) return;
  thread_->Post([this, tenant] { Settle(tenant); });
}

GrantsInCluster GrantKeeper::InCluster(const std::string& tenant) const {
  const std::lock_guard lock(mutex_);
  GrantsInCluster all;
  const auto found = known_.find(tenant);
  if (found == known_.end()) return all;
  for (const auto& [daemon, grant] : found->second) {
    for (const Resource resource : kGrantedResources)
      At(all.sum, resource) += At(grant.amount, resource);
    all.daemons.emplace_back(daemon, grant.amount);
  }
  return all;
}

void GrantKeeper::GrantChanged(const std::string& key, const std::string& value) {
  const std::size_t slash = key.rfind('/');
  if (slash < kGrantKeys.size()) return;
  const std::string tenant = key.substr(kGrantKeys.size(), slash - kGrantKeys.size());
  const std::string daemon = key.substr(slash + 1);
  bool matters = false;
  {
    const std::lock_guard lock(mutex_);
    std::map<std::string, GrantRecord>& grants = known_[tenant];
    const auto before = grants.find(daemon);
    const bool is_own = daemon == place_.self().id;
    if (value.empty()) {
      matters = is_own && before != grants.end();
      grants.erase(daemon);
    } else if (const auto grant = records_.ToGrant(key, value); grant.ok()) {
      matters = grant->wanted && !is_own;
      if (is_own) matters = before == grants.end() || before->second.amount != grant->amount;
      grants[daemon] = *grant;
    } else {
      LogError(
          "event=control_store_record_unreadable key=\"{}\" error=\"{}\" effect=\"no daemon "
          "gets more of the tenant's quotas\"",
          Printable(key, kGrantKeyBytesShown), MessageOf(grant.status()));
    }
    if (grants.empty()) known_.erase(tenant);
    matters = matters || waiting_.contains(tenant);
  }
  if (matters) Queue(tenant);
}

void GrantKeeper::QuotaChanged(const std::string& tenant) { Queue(tenant); }

void GrantKeeper::RemovalChanged(const std::string& tenant, bool begins) {
  {
    const std::lock_guard lock(mutex_);
    if (begins) {
      removals_.insert(tenant);
    } else {
      removals_.erase(tenant);
    }
  }
  Queue(tenant);
}

void GrantKeeper::Tick() {
  const TimeNs now = clock_.Now();
  if (now - kept_at_ >= kKeepPeriod) KeepPlace();
  OpenPlace();
  std::set<std::string> due = leaving_;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [tenant, waiters] : waiting_) due.insert(tenant);
    // While others want something, what jobs free is given back at once.
    for (const auto& [tenant, grants] : known_) {
      for (const auto& [daemon, grant] : grants) {
        if (grant.wanted && daemon != place_.self().id) due.insert(tenant);
      }
    }
    for (const auto& [tenant, since] : wanted_at_) {
      if (!waiting_.contains(tenant) && now - since >= kWantedMin) due.insert(tenant);
    }
  }
  for (const std::string& tenant : due) Queue(tenant);
}

void GrantKeeper::KeepPlace() {
  kept_at_ = clock_.Now();
  if (place_.lease() == 0) return TakePlace();
  const absl::Status kept = place_.Keep();
  if (absl::IsNotFound(kept)) {
    LogWarning("event=daemon_place_lost id={} effect=\"other daemons may use its grants\"",
               place_.self().id);
    return TakePlace();
  }
  if (absl::IsUnavailable(kept)) return loop_.NoteUnreachable(kept);
  std::vector<std::string> above;  // they use memory of ended jobs, or their quotas are new
  with_ledger_([&](Ledger& ledger) {
    if (opened_) ledger.SetGrantsEnd(place_.end());
    above = ledger.TenantsAboveGrants();
  });
  for (const std::string& tenant : above) Queue(tenant);
}

// The daemon was cut off for longer than the grace, or etcd was away when it started. It claims
// what its jobs use, even if that is above the quota now.
void GrantKeeper::TakePlace() {
  const absl::Status before = place_fault_;
  opened_ = false;
  place_fault_ = place_.Take();
  if (!place_fault_.ok()) {
    if (MessageOf(before) != MessageOf(place_fault_)) {
      LogError("event=daemon_place_refused error=\"{}\" effect=\"no more of tenants' quotas\"",
               MessageOf(place_fault_));
    }
    return with_ledger_([](Ledger& ledger) { ledger.SetGrantsEnd(0); });
  }
  LogInfo("event=daemon_place id={}", place_.self().id);
  std::vector<std::string> tenants;
  with_ledger_([&](Ledger& ledger) {
    tenants = ledger.TenantsWithGrants();
    for (const std::string& tenant : tenants) ledger.SetGrant(tenant, {});
    ledger.SetGrantsEnd(0);
  });
  OpenPlace();
  for (const std::string& tenant : tenants) Queue(tenant);
  QueueRemovals();
}

// Answers those that were asked for before this daemon had its place.
void GrantKeeper::QueueRemovals() {
  std::set<std::string> removals;
  {
    const std::lock_guard lock(mutex_);
    removals = removals_;
  }
  for (const std::string& tenant : removals) Queue(tenant);
}

// While the daemon had no place, other daemons may have deleted tenants without asking it. So it
// starts jobs once it knows everything that was changed before it took its place; who deletes a
// tenant after that sees the place, and asks.
void GrantKeeper::OpenPlace() {
  if (opened_ || place_.lease() == 0 || !loop_.HasDelivered(place_.revision())) return;
  opened_ = true;
  with_ledger_([this](Ledger& ledger) { ledger.SetGrantsEnd(place_.end()); });
}

}  // namespace phub::server::etcd
