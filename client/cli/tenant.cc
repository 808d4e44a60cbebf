// phubctl tenant create, list, get, set-quota, suspend, resume, delete; phubctl quota usage.
#include <fmt/format.h>

#include <charconv>
#include <memory>

#include "client/cli/cli.h"
#include "client/cli/output.h"
#include "client/cli/rpc.h"
#include "common/base/units.h"
#include "phub/v1/tenants.grpc.pb.h"

namespace phub::client::cli {
namespace {

using Align = Table::Align;
using Stub = v1::Tenants::Stub;

// Limits as given by the user; empty: not given, "none": no limit.
struct QuotaText {
  std::string memory;
  std::string jobs;
  std::string workers;
  std::string keys;
  std::string weight;
  std::string bandwidth;
};
struct TenantRequest {
  std::string name;
  QuotaText quota;
  std::string encryption;
  std::string watch_text;
  bool yes = false;
};
constexpr const char* kNone = "none";

std::optional<std::uint32_t> ParseCount(const std::string& text) {
  std::uint32_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return count;
}

std::string CheckCount(const std::string& text) {
  if (text == kNone || ParseCount(text)) return {};
  return fmt::format("\"{}\" is neither a number nor \"none\"", text);
}

std::string CheckBytes(const std::string& text) {
  if (text == kNone || ParseBytes(text)) return {};
  return fmt::format("\"{}\" is neither a size such as \"8GiB\" nor \"none\"", text);
}

// "1GiB", "1GiB/s"
std::optional<std::uint64_t> ParseBandwidth(std::string text) {
  if (text.ends_with("/s")) text.resize(text.size() - 2);
  return ParseBytes(text);
}

std::string CheckBandwidth(const std::string& text) {
  if (text == kNone || ParseBandwidth(text)) return {};
  return fmt::format("\"{}\" is neither a rate such as \"1GiB/s\" nor \"none\"", text);
}

void AddQuotaOptions(Subcommand app, QuotaText& quota) {
  const auto add = [&](const char* name, std::string& text, const char* help, const char* type,
                       std::string (*check)(const std::string&)) {
    app.AddOption(name, text, help).TypeName(type).Check(check);
  };
  add("--memory", quota.memory, "Limit of memory that its jobs reserve", "BYTES", CheckBytes);
  add("--jobs", quota.jobs, "Limit of concurrent jobs", "COUNT", CheckCount);
  add("--workers", quota.workers, "Limit of workers in all its jobs", "COUNT", CheckCount);
  add("--keys", quota.keys, "Limit of keys in all its jobs", "COUNT", CheckCount);
  add("--weight", quota.weight, "Weight when tenants compete for a core (default: 100)", "COUNT",
      CheckCount);
  add("--bandwidth", quota.bandwidth, "Limit of bytes per second that its workers push", "BYTES/s",
      CheckBandwidth);
}

void AddEncryptionOption(Subcommand app, std::string& encryption) {
  app.AddOption(
         "--encryption", encryption,
         "required: refuse lanes to other hosts that are not encrypted (allows tcp with TLS, "
         "never RDMA). optional: use the daemon's setting")
      .TypeName("TEXT")
      .OneOf({"required", "optional"});
}

// The given limits. Limits of "none" go to `lift`; null: a new tenant, which has no limits to lift.
v1::Quota QuotaOf(const QuotaText& text, v1::SetQuotaRequest* lift) {
  v1::Quota quota;
  const auto is_given = [&](const std::string& value, const char* name) {
    if (value == kNone && lift != nullptr) lift->add_lift(name);
    return !value.empty() && value != kNone;
  };
  if (is_given(text.memory, "memory_bytes")) quota.set_memory_bytes(*ParseBytes(text.memory));
  if (is_given(text.jobs, "jobs")) quota.set_jobs(*ParseCount(text.jobs));
  if (is_given(text.workers, "workers")) quota.set_workers(*ParseCount(text.workers));
  if (is_given(text.keys, "keys")) quota.set_keys(*ParseCount(text.keys));
  if (is_given(text.weight, "weight")) quota.set_weight(*ParseCount(text.weight));
  if (is_given(text.bandwidth, "bandwidth_bytes"))
    quota.set_bandwidth_bytes(*ParseBandwidth(text.bandwidth));
  return quota;
}

std::string MemoryText(const v1::TenantInfo& tenant) {
  const std::string used = HumanBytes(tenant.usage().memory_bytes());
  if (!tenant.quota().has_memory_bytes()) return used;
  return fmt::format("{} of {}", used, HumanBytes(tenant.quota().memory_bytes()));
}

std::string CountText(std::uint64_t used, bool limited, std::uint64_t limit) {
  return limited ? fmt::format("{} of {}", used, limit) : fmt::format("{}", used);
}

// "3 of 4 jobs, 2.0 GiB of 4.0 GiB": only limited quotas.
std::string SharesText(const v1::Quota& quota, const v1::QuotaUsage& part,
                       const v1::QuotaUsage& whole) {
  std::string text;
  const auto add = [&](const std::string& each) { text += (text.empty() ? "" : ", ") + each; };
  if (quota.has_jobs()) add(fmt::format("{} of {} jobs", part.jobs(), whole.jobs()));
  if (quota.has_workers()) add(fmt::format("{} of {} workers", part.workers(), whole.workers()));
  if (quota.has_keys()) add(fmt::format("{} of {} keys", part.keys(), whole.keys()));
  if (quota.has_memory_bytes()) {
    add(fmt::format("{} of {}", HumanBytes(part.memory_bytes()), HumanBytes(whole.memory_bytes())));
  }
  return text.empty() ? "-" : text;
}

v1::QuotaUsage LimitsOf(const v1::Quota& quota) {
  v1::QuotaUsage limits;
  limits.set_jobs(quota.jobs());
  limits.set_workers(quota.workers());
  limits.set_keys(quota.keys());
  limits.set_memory_bytes(quota.memory_bytes());
  return limits;
}

std::string TenantsTable(const v1::ListTenantsResponse& response, bool wide) {
  std::vector<Table::Column> columns = {{"TENANT"},  {"STATE"}, {"MEMORY"}, {"JOBS"},
                                        {"WORKERS"}, {"KEYS"},  {"WEIGHT"}, {"BANDWIDTH"}};
  const bool shared = std::any_of(response.tenants().begin(), response.tenants().end(),
                                  [](const v1::TenantInfo& each) { return each.has_cluster(); });
  if (shared) columns.insert(columns.end(), {{"OF ITS GRANT"}, {"HELD IN CLUSTER"}});
  if (wide) columns.insert(columns.end(), {{"PUSHED"}, {"ENCRYPTION"}, {"CREATED"}});
  Table table(columns);
  for (const v1::TenantInfo& tenant : response.tenants()) {
    const v1::Quota& quota = tenant.quota();
    const v1::QuotaUsage& usage = tenant.usage();
    std::vector<std::string> cells = {
        tenant.name(),
        tenant.state(),
        MemoryText(tenant),
        CountText(usage.jobs(), quota.has_jobs(), quota.jobs()),
        CountText(usage.workers(), quota.has_workers(), quota.workers()),
        CountText(usage.keys(), quota.has_keys(), quota.keys()),
        quota.has_weight() ? fmt::format("{}", quota.weight()) : "100",
        quota.has_bandwidth_bytes() ? HumanBytes(quota.bandwidth_bytes()) + "/s" : "-"};
    if (shared) {
      const v1::ClusterQuotas& cluster = tenant.cluster();
      cells.insert(cells.end(), {SharesText(quota, cluster.used(), cluster.grant()),
                                 SharesText(quota, cluster.held(), LimitsOf(quota))});
    }
    if (wide) {
      cells.insert(cells.end(), {HumanBytes(usage.gradient_bytes()), tenant.encryption(),
                                 DateText(tenant.created_at_ns())});
    }
    table.Add(std::move(cells));
  }
  return table.Text();
}

int ListTenants(const Options& options, const std::string& watch_text) {
  v1::ListTenantsRequest request;
  request.set_tenant(options.tenant);
  return ShowPages(options, watch_text, &Stub::ListTenants, request,
                   [&](const v1::ListTenantsResponse& response) {
                     return TenantsTable(response, options.output == Output::kWide);
                   });
}

template <typename Request>
int AskForTenant(const Options& options,
                 grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                              v1::TenantInfo*),
                 const Request& request, const std::string& watch_text = kOnce) {
  return ShowAnswer(options, watch_text, method, request, [&](const v1::TenantInfo& tenant) {
    v1::ListTenantsResponse list;
    *list.add_tenants() = tenant;
    return TenantsTable(list, options.output == Output::kWide);
  });
}

int CreateTenant(const Options& options, const TenantRequest& asked) {
  v1::CreateTenantRequest request;
  request.set_name(asked.name);
  *request.mutable_quota() = QuotaOf(asked.quota, nullptr);
  request.set_encryption(asked.encryption);
  return AskForTenant(options, &Stub::CreateTenant, request);
}

int SetQuota(const Options& options, const TenantRequest& asked) {
  v1::SetQuotaRequest request;
  request.set_tenant(asked.name);
  *request.mutable_set() = QuotaOf(asked.quota, &request);
  request.set_encryption(asked.encryption);
  return AskForTenant(options, &Stub::SetQuota, request);
}

int Suspend(const Options& options, const TenantRequest& asked, bool resume) {
  const std::string question =
      fmt::format("Suspend tenant {}, so that no worker can join its jobs?", asked.name);
  if (!resume && !Confirmed(asked.yes, question)) return kUsage;
  v1::SuspendTenantRequest request;
  request.set_tenant(asked.name);
  request.set_resume(resume);
  return AskForTenant(options, &Stub::SuspendTenant, request);
}

int DeleteTenant(const Options& options, const TenantRequest& asked) {
  if (!Confirmed(asked.yes, fmt::format("Delete tenant {} and its tokens?", asked.name))) {
    return kUsage;
  }
  v1::DeleteTenantRequest request;
  request.set_tenant(asked.name);
  return ShowAnswer(options, kOnce, &Stub::DeleteTenant, request,
                    [](const v1::DeleteTenantResponse&) { return std::string(); });
}

using Action = int (*)(const Options&, const TenantRequest&);

std::shared_ptr<TenantRequest> AddCommand(Subcommand parent, const char* name, const char* help,
                                          const Options& options, Command& command, Action action,
                                          Subcommand& added) {
  added = parent.AddSubcommand(name, help);
  const auto request = std::make_shared<TenantRequest>();
  added.AddOption("NAME", request->name, "Name of the tenant").Required().TypeName("");
  added.OnNamed([&, request, action] {
    command = [&, request, action] { return action(options, *request); };
  });
  return request;
}

}  // namespace

void AddTenant(Subcommand parent, const Options& options, Command& command) {
  const Subcommand tenant = parent.AddSubcommand("tenant", "Manage tenants and their quotas");
  tenant.SetFooter(
      "Examples:\n"
      "  phubctl tenant create acme --memory 16GiB --jobs 4\n"
      "  phubctl tenant set-quota acme --memory 32GiB --jobs none\n"
      "  phubctl tenant suspend acme --yes && phubctl job list --tenant acme\n"
      "Each daemon stores its own tenants: repeat a change at every daemon of a rack (-e), unless\n"
      "the daemons share a control store in etcd.");
  Subcommand added;
  auto request = AddCommand(tenant, "create", "Create a tenant with the given limits", options,
                            command, CreateTenant, added);
  AddQuotaOptions(added, request->quota);
  AddEncryptionOption(added, request->encryption);

  const Subcommand list = tenant.AddSubcommand("list", "List tenants with usage and limits");
  const auto watch_text = std::make_shared<std::string>();
  AddWatch(list, *watch_text);
  list.OnNamed(
      [&, watch_text] { command = [&, watch_text] { return ListTenants(options, *watch_text); }; });

  request = AddCommand(
      tenant, "get", "Show a tenant", options, command,
      [](const Options& given, const TenantRequest& asked) {
        v1::GetTenantRequest get;
        get.set_tenant(asked.name);
        return AskForTenant(given, &Stub::GetTenant, get, asked.watch_text);
      },
      added);
  AddWatch(added, request->watch_text);
  request = AddCommand(tenant, "set-quota", "Change the given limits; \"none\" removes a limit",
                       options, command, SetQuota, added);
  AddQuotaOptions(added, request->quota);
  AddEncryptionOption(added, request->encryption);
  added.SetFooter(
      "Weight and bandwidth take effect at once. The other limits apply to new reservations only.");

  request = AddCommand(
      tenant, "suspend", "Refuse new workers of a tenant; running jobs may finish", options,
      command,
      [](const Options& given, const TenantRequest& asked) { return Suspend(given, asked, false); },
      added);
  added.AddFlag("--yes", request->yes, "Do not ask for confirmation");
  added.SetFooter(
      "If the control store is in etcd and etcd does not answer, the suspension applies only at\n"
      "this daemon until it does: repeat the command at the other daemons (-e).");
  AddCommand(
      tenant, "resume", "End the suspension of a tenant", options, command,
      [](const Options& given, const TenantRequest& asked) { return Suspend(given, asked, true); },
      added);
  request = AddCommand(tenant, "delete", "Delete a tenant without jobs, and its tokens", options,
                       command, DeleteTenant, added);
  added.AddFlag("--yes", request->yes, "Do not ask for confirmation");
}

void AddQuota(Subcommand parent, const Options& options, Command& command) {
  const Subcommand quota = parent.AddSubcommand("quota", "Show the usage of quotas");
  const Subcommand usage = quota.AddSubcommand("usage", "Show usage and limits of tenants");
  const auto watch_text = std::make_shared<std::string>();
  AddWatch(usage, *watch_text);
  usage.OnNamed(
      [&, watch_text] { command = [&, watch_text] { return ListTenants(options, *watch_text); }; });
}

}  // namespace phub::client::cli
