// How changes of the control store reach the directory and admission, and what runs every few
// seconds, see tenant_admin.h.
#include <fmt/format.h>

#include "common/base/log.h"
#include "common/base/status_text.h"
#include "common/base/units.h"
#include "server/tenant/tenant_admin.h"

namespace phub::server {

void TenantAdmin::Apply(const Tenant& tenant) {
  if (!store_->is_shared()) TenantChanged(tenant);
}

void TenantAdmin::Apply(const Token& token) {
  if (!store_->is_shared()) TokenChanged(token);
}

void TenantAdmin::TenantChanged(const Tenant& tenant) {
  {
    const std::lock_guard lock(leaving_mutex_);
    leaving_.erase(tenant.name);
  }
  Show(tenant);
}

void TenantAdmin::Show(const Tenant& tenant) {
  const Tenant shown = local_.Over(tenant);
  directory_.SetTenant(shown);
  hooks_.set_tenant(shown);
}

// Its jobs may still run here, and go on. It has no identity and no new jobs from now on.
void TenantAdmin::TenantRemoved(const std::string& name) {
  directory_.RemoveTenant(name);
  const absl::Status removed = hooks_.remove_tenant(name);
  if (removed.ok()) return;
  hooks_.set_tenant({.name = name, .suspended = true});
  LogWarning("event=deleted_tenant_has_jobs tenant={} reason=\"{}\"", name, MessageOf(removed));
  const std::lock_guard lock(leaving_mutex_);
  leaving_.insert(name);
}

void TenantAdmin::TokenChanged(const Token& token) {
  directory_.SetToken(local_.Over(token));
  if (!token.key_id.empty()) NoteMissingKeys();
}

absl::Status TenantAdmin::LoadKeys() {
  absl::Status first;
  for (const std::string& id : directory_.MissingKeys()) {
    auto key = store_->ReadOtherKey(id);
    if (key.ok()) {
      directory_.AddKey(id, *std::move(key));
    } else {
      first.Update(key.status());
    }
  }
  return first;
}

// Other daemons may copy tokens into the store before this host has their key.
void TenantAdmin::NoteMissingKeys() {
  const std::string fault(MessageOf(LoadKeys()));
  const std::lock_guard lock(leaving_mutex_);
  if (fault == key_fault_) return;
  key_fault_ = fault;
  if (!fault.empty()) {
    LogError("event=token_key_missing error=\"{}\" effect=\"tokens with this key are refused\"",
             fault);
  }
}

void TenantAdmin::TokenRemoved(const std::string& id) { directory_.RemoveToken(id); }

void TenantAdmin::RemoveLeaving() {
  const std::lock_guard lock(leaving_mutex_);
  std::erase_if(leaving_, [this](const std::string& name) {
    return directory_.FindTenant(name).has_value() || hooks_.remove_tenant(name).ok();
  });
}

void TenantAdmin::Tick(TimeNs now, bool last) {
  writer_.Retry();
  WriteLocal();
  ShareStoreState();
  RemoveLeaving();
  NoteMissingKeys();
  if (last && (writer_.state().deferred > 0 || (local_file_is_old_ && local_.size() > 0)))
    LogError("event=changes_lost warning=\"{}\"", Warning());
  if (!writer_.state().fault.empty()) return;
  for (const AuditBudgets::Summary& each : budgets_.TakeSummaries(now, last)) {
    const AuditNote note{
        "phubd", "", "audit.suppressed", each.tenant,
        fmt::format("{} entries suppressed in {}", each.count, HumanDuration(each.duration))};
    if (!writer_.Write([&](ControlStore& store) { return store.Audit(note); }).ok()) return;
  }
}

void TenantAdmin::ShareStoreState() {
  StoreState now = writer_.state();
  now.deferred += local_.size();
  if (now == shared_state_) return;
  shared_state_ = std::move(now);
  hooks_.set_store_state(shared_state_);
}

}  // namespace phub::server
