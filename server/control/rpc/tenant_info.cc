#include "server/control/rpc/tenant_info.h"

#include "server/control/admin/tenants.h"

namespace phub::server {

namespace {

v1::QuotaUsage ToProto(const Usage& usage) {
  v1::QuotaUsage message;
  message.set_memory_bytes(usage.memory_bytes);
  message.set_jobs(usage.jobs);
  message.set_workers(usage.workers);
  message.set_keys(usage.keys);
  return message;
}

}  // namespace

v1::TenantInfo DescribeTenant(Control& control, const Tenant& tenant, const PushedBytes& pushed) {
  v1::TenantInfo info;
  info.set_name(tenant.name);
  info.set_state(tenant.suspended ? "suspended" : "active");
  v1::Quota& quota = *info.mutable_quota();
  if (tenant.quota.memory_bytes) quota.set_memory_bytes(*tenant.quota.memory_bytes);
  if (tenant.quota.jobs) quota.set_jobs(*tenant.quota.jobs);
  if (tenant.quota.workers) quota.set_workers(*tenant.quota.workers);
  if (tenant.quota.keys) quota.set_keys(*tenant.quota.keys);
  if (tenant.quota.weight) quota.set_weight(*tenant.quota.weight);
  if (tenant.quota.bandwidth_bytes) quota.set_bandwidth_bytes(*tenant.quota.bandwidth_bytes);
  const Usage used = control.tenants().UsageOf(tenant.name);
  info.mutable_usage()->set_memory_bytes(used.memory_bytes);
  info.mutable_usage()->set_jobs(used.jobs);
  info.mutable_usage()->set_workers(used.workers);
  info.mutable_usage()->set_keys(used.keys);
  const auto bytes = pushed.find(tenant.name);
  info.mutable_usage()->set_gradient_bytes(bytes == pushed.end() ? 0 : bytes->second);
  if (const Grants* const grants = control.tenants().grants(); grants != nullptr) {
    const Ledger::GrantUse use = control.tenants().ledger().GrantUseOf(tenant.name);
    v1::ClusterQuotas& cluster = *info.mutable_cluster();
    cluster.set_daemon(grants->daemon_id());
    *cluster.mutable_grant() = ToProto(use.grant);
    *cluster.mutable_used() = ToProto(use.charged);
    *cluster.mutable_held() = ToProto(grants->InCluster(tenant.name).sum);
  }
  info.set_created_at_ns(tenant.created_at);
  info.set_encryption(tenant.encryption_required ? "required" : "optional");
  return info;
}

}  // namespace phub::server
