#include "server/etcd/mirror.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "common/base/log.h"
#include "common/base/printable.h"
#include "common/base/status_text.h"
#include "server/tenant/tenant_admin.h"

namespace phub::server::etcd {
namespace {

constexpr std::size_t kKeyBytesShown = 200;  // in logs: anyone who writes to etcd chooses them

bool IsOfMembers(std::string_view key) {
  return key == kViewKey || key.starts_with(kPlaceKeys) || key.starts_with(kEndpointKeys);
}

}  // namespace

void Mirror::SetFollower(StoreFollower* follower) {
  const std::lock_guard lock(mutex_);
  follower_ = follower;
}

void Mirror::Replace(const std::vector<Item>& items, std::int64_t revision, bool went_back) {
  const std::lock_guard lock(mutex_);
  const auto is_newer = [&](const Seen& seen) { return !went_back && seen.revision > revision; };
  std::set<std::string> kept;
  for (const Item& item : items) kept.insert(item.key);
  std::vector<std::string> gone;
  for (const auto& [key, seen] : seen_) {
    if (!seen.removed && !is_newer(seen) && !kept.contains(key)) gone.push_back(key);
  }
  for (const std::string& key : gone) RemoveLocked(key, seen_[key].revision + 1);
  std::erase_if(seen_,
                [&](const auto& each) { return each.second.removed && !is_newer(each.second); });
  for (const Item& item : items) {
    Seen& seen = seen_[item.key];
    if (is_newer(seen)) continue;
    seen.revision = 0;  // equal revisions may differ, too, after a restored backup
    PutLocked(item);
  }
  revision_ = revision;
}

void Mirror::Put(const Item& item) {
  const std::lock_guard lock(mutex_);
  PutLocked(item);
}

void Mirror::Remove(const std::string& key, std::int64_t revision) {
  const std::lock_guard lock(mutex_);
  RemoveLocked(key, revision);
}

void Mirror::RemoveTokensOf(const std::string& tenant, std::int64_t revision) {
  const std::lock_guard lock(mutex_);
  const std::string begin = TokensOfTenant(tenant);
  std::vector<std::string> gone;
  for (auto next = seen_.lower_bound(begin); next != seen_.end() && next->first.starts_with(begin);
       ++next) {
    gone.push_back(next->first);
  }
  for (const std::string& key : gone) RemoveLocked(key, revision);
}

void Mirror::AdvanceTo(std::int64_t revision) {
  const std::lock_guard lock(mutex_);
  if (revision <= revision_) return;
  revision_ = revision;
  std::erase_if(seen_, [&](const auto& each) {
    return each.second.removed && each.second.revision <= revision;
  });
}

void Mirror::PutLocked(const Item& item) {
  Seen& seen = seen_[item.key];
  if (seen.revision >= item.revision) return;
  seen = {.revision = item.revision};
  if (item.key == kHeadKey) {
    const auto head = records_.ToHead(item.value);
    if (!head.ok()) return NoteFault(item.key, seen, head.status());
    head_ = *head;
  } else if (item.key.starts_with(kTenantKeys)) {
    PutTenant(item, seen);
  } else if (item.key.starts_with(kTokenKeys)) {
    PutToken(item, seen);
  } else if (item.key.starts_with(kGrantKeys) && grant_follower_ != nullptr) {
    grant_follower_->GrantChanged(item.key, item.value);
  } else if (item.key.starts_with(kRemovalKeys) && grant_follower_ != nullptr) {
    grant_follower_->RemovalChanged(item.key.substr(kRemovalKeys.size()), true);
  } else if (IsOfMembers(item.key) && member_follower_ != nullptr) {
    member_follower_->RecordChanged(item.key, item.revision, item.value);
  }
}

void Mirror::PutTenant(const Item& item, Seen& seen) {
  auto read = records_.ToTenant(item.key, item.value);
  const std::string name = item.key.substr(kTenantKeys.size());
  Tenant tenant;
  if (read.ok()) {
    tenant = *std::move(read);
  } else {
    NoteFault(item.key, seen, read.status());
    if (!IsTenantName(name)) return;
    const auto known = tenants_.find(item.key);
    if (known != tenants_.end()) tenant = known->second;
    tenant.name = name;
    tenant.suspended = true;
  }
  tenant.revision = item.revision;
  tenants_[item.key] = tenant;
  if (follower_ != nullptr) follower_->TenantChanged(tenant);
  if (grant_follower_ != nullptr) grant_follower_->QuotaChanged(tenant.name);
}

void Mirror::PutToken(const Item& item, Seen& seen) {
  auto token = records_.ToToken(item.key, item.value);
  if (token.ok()) {
    token->revision = item.revision;
    tokens_[item.key] = *token;
    if (follower_ != nullptr) follower_->TokenChanged(*token);
    return;
  }
  NoteFault(item.key, seen, token.status());
  const std::string id = item.key.substr(item.key.rfind('/') + 1);
  tokens_.erase(item.key);
  if (follower_ != nullptr) follower_->TokenRemoved(id);
}

void Mirror::NoteFault(const std::string& key, Seen& seen, const absl::Status& status) {
  const std::string shown = Printable(key, kKeyBytesShown);
  seen.fault = absl::Status(status.code(), fmt::format("{} {}", shown, MessageOf(status)));
  LogError("event=control_store_record_unreadable key=\"{}\" error=\"{}\" effect=\"{}\"", shown,
           MessageOf(seen.fault),
           key.starts_with(kTenantKeys)  ? "the tenant is suspended"
           : key.starts_with(kTokenKeys) ? "the token is refused"
                                         : "changes are refused");
}

void Mirror::RemoveLocked(const std::string& key, std::int64_t revision) {
  Seen& seen = seen_[key];
  if (seen.revision >= revision) return;
  seen = {.revision = revision, .removed = true};
  if (key == kHeadKey) {
    seen.fault = absl::DataLossError(fmt::format("{} in etcd is missing", key));
    LogError("event=control_store_record_missing key=\"{}\" effect=\"changes are refused\"", key);
  }
  tenants_.erase(key);
  tokens_.erase(key);
  if (grant_follower_ != nullptr && key.starts_with(kGrantKeys))
    grant_follower_->GrantChanged(key, "");
  if (grant_follower_ != nullptr && key.starts_with(kRemovalKeys))
    grant_follower_->RemovalChanged(key.substr(kRemovalKeys.size()), false);
  if (member_follower_ != nullptr && IsOfMembers(key))
    member_follower_->RecordChanged(key, revision, "");
  if (follower_ == nullptr) return;
  if (key.starts_with(kTenantKeys)) follower_->TenantRemoved(key.substr(kTenantKeys.size()));
  if (key.starts_with(kTokenKeys)) follower_->TokenRemoved(key.substr(key.rfind('/') + 1));
  if (grant_follower_ != nullptr && key.starts_with(kTenantKeys))
    grant_follower_->QuotaChanged(key.substr(kTenantKeys.size()));
}

std::int64_t Mirror::revision() const {
  const std::lock_guard lock(mutex_);
  return revision_;
}

std::vector<Tenant> Mirror::Tenants() const {
  const std::lock_guard lock(mutex_);
  std::vector<Tenant> list;
  for (const auto& [key, tenant] : tenants_) list.push_back(tenant);
  return list;
}

std::vector<Token> Mirror::Tokens() const {
  std::vector<Token> list;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, token] : tokens_) list.push_back(token);
  }
  std::sort(list.begin(), list.end(), [](const Token& left, const Token& right) {
    return std::tie(left.created_at, left.id) < std::tie(right.created_at, right.id);
  });
  return list;
}

std::int64_t Mirror::RevisionOf(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = seen_.find(key);
  return found == seen_.end() || found->second.removed ? 0 : found->second.revision;
}

absl::Status Mirror::FaultOf(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = seen_.find(key);
  return found == seen_.end() ? absl::OkStatus() : found->second.fault;
}

template <typename Record>
absl::StatusOr<Record> Mirror::FindLocked(const std::map<std::string, Record>& records,
                                          const std::string& key) const {
  const auto seen = seen_.find(key);
  if (seen != seen_.end() && !seen->second.fault.ok()) return seen->second.fault;
  const auto found = records.find(key);
  if (found == records.end()) return absl::NotFoundError(fmt::format("there is no {}", key));
  return found->second;
}

absl::StatusOr<Tenant> Mirror::FindTenant(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  return FindLocked(tenants_, key);
}

absl::StatusOr<Token> Mirror::FindToken(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  return FindLocked(tokens_, key);
}

void Mirror::Repeat(const std::string& key) {
  const std::lock_guard lock(mutex_);
  if (follower_ == nullptr) return;
  if (const auto tenant = tenants_.find(key); tenant != tenants_.end())
    follower_->TenantChanged(tenant->second);
  if (const auto token = tokens_.find(key); token != tokens_.end())
    follower_->TokenChanged(token->second);
}

absl::StatusOr<HeadRecord> Mirror::Head(std::int64_t& revision) const {
  const std::lock_guard lock(mutex_);
  const auto found = seen_.find(std::string(kHeadKey));
  revision = found == seen_.end() ? 0 : found->second.revision;
  if (found != seen_.end() && !found->second.fault.ok()) return found->second.fault;
  return head_;
}

}  // namespace phub::server::etcd
