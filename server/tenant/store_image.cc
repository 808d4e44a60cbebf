#include "server/tenant/store_image.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/printable.h"
#include "common/base/status_text.h"
#include "server/tenant/audit_chain.h"
#include "server/tenant/tenant_admin.h"
#include "server/tenant/token.h"

namespace phub::server {
namespace {

constexpr std::size_t kLogIdBytes = 8;
constexpr std::size_t kConflictsNamedMax = 20;
constexpr std::size_t kLabelBytesShown = 200;

// Differences that forbid copying.
class Conflicts {
 public:
  void Add(const std::string& text) {
    if (++count_ <= kConflictsNamedMax) text_ += "\n  " + text;
  }
  absl::Status status() const {
    if (count_ == 0) return absl::OkStatus();
    const std::string more = count_ > kConflictsNamedMax
                                 ? fmt::format("\n  and {} more", count_ - kConflictsNamedMax)
                                 : "";
    return absl::FailedPreconditionError(fmt::format(
        "nothing was copied, because the stores differ:{}{}\nMake them equal, or rename or delete "
        "one of them, and try again",
        text_, more));
  }

 private:
  std::string text_;
  std::size_t count_ = 0;
};

bool IsEqual(const Tenant& left, const Tenant& right) {
  return left.suspended == right.suspended && left.quota == right.quota &&
         left.encryption_required == right.encryption_required;
}

std::string Describe(const Token& token) {
  return fmt::format("{}, {}, token key {}{}",
                     token.tenant.empty() ? ToString(token.role) : "tenant " + token.tenant,
                     token.revoked_at != 0   ? "revoked"
                     : token.expires_at != 0 ? fmt::format("expires at {} ns", token.expires_at)
                                             : "never expires",
                     token.key_id,
                     token.label.empty()
                         ? ""
                         : fmt::format(", label \"{}\"", Printable(token.label, kLabelBytesShown)));
}

bool IsEqual(const Token& left, const Token& right) {
  return left.role == right.role && left.tenant == right.tenant && left.label == right.label &&
         left.hash == right.hash && left.key_id == right.key_id &&
         left.created_at == right.created_at && left.expires_at == right.expires_at &&
         left.revoked_at == right.revoked_at && left.created_by == right.created_by;
}

absl::Status CheckLog(const StoreImage& image, const AuditLog& log) {
  const auto key = image.keys.find(log.key_id);
  if (key == image.keys.end()) {
    return absl::DataLossError(fmt::format("{}: the token key {} of audit log {} is missing",
                                           image.name, log.key_id, log.id));
  }
  std::string before;
  std::int64_t expected = 1;
  for (const AuditEntry& entry : log.entries) {
    const absl::Status checked = CheckEntry(key->second, entry, expected++, before);
    if (!checked.ok()) {
      return absl::DataLossError(
          fmt::format("{}: audit log {}: {}", image.name, log.id, MessageOf(checked)));
    }
    before = entry.chain;
  }
  return absl::OkStatus();
}

// Collects what the target lacks, source by source.
class Planner {
 public:
  explicit Planner(const StoreImage& target)
      : target_(target), target_key_id_(TokenKeyId(target.key)) {
    for (const Tenant& tenant : target.tenants) tenants_[tenant.name] = {target.name, &tenant};
    for (const Token& token : target.tokens) tokens_[token.id] = {target.name, &token};
    for (const AuditLog& log : target.old_logs) {
      logs_[log.id] = {target.name, &log};
      target_entries_[log.id] = log.entries.size();
    }
  }

  void Add(const StoreImage& source) {
    for (const Tenant& tenant : source.tenants) Add(source, tenant);
    for (const Token& token : source.tokens) Add(source, token);
    for (const AuditLog& log : source.old_logs) Add(source, log);
    Add(source, source.log);
  }

  absl::StatusOr<CopyPlan> Finish() {
    if (absl::Status status = conflicts_.status(); !status.ok()) return status;
    return std::move(plan_);
  }

 private:
  template <typename Record>
  struct Known {
    std::string store;
    const Record* record = nullptr;
  };

  void Add(const StoreImage& source, const Tenant& tenant) {
    const auto [known, is_new] =
        tenants_.try_emplace(tenant.name, Known<Tenant>{source.name, &tenant});
    if (is_new) {
      plan_.tenants.push_back(tenant);
    } else if (IsEqual(*known->second.record, tenant)) {
      ++plan_.equal_tenants;
    } else {
      conflicts_.Add(fmt::format("tenant {}: {} has \"{}\", {} has \"{}\"", tenant.name,
                                 source.name, DescribeState(tenant), known->second.store,
                                 DescribeState(*known->second.record)));
    }
  }

  void Add(const StoreImage& source, const Token& token) {
    const auto [known, is_new] = tokens_.try_emplace(token.id, Known<Token>{source.name, &token});
    if (is_new) {
      Token copied = token;
      NeedKey(source, token.key_id);
      if (token.key_id == target_key_id_) copied.key_id.clear();
      plan_.tokens.push_back(std::move(copied));
    } else if (IsEqual(*known->second.record, token)) {
      ++plan_.equal_tokens;
    } else {
      conflicts_.Add(fmt::format("token {}: {} has \"{}\", {} has \"{}\"", token.id, source.name,
                                 Describe(token), known->second.store,
                                 Describe(*known->second.record)));
    }
  }

  void Add(const StoreImage& source, const AuditLog& log) {
    if (log.entries.empty()) return;
    const bool is_targets = log.id == target_.log.id;
    const auto known = logs_.find(log.id);
    const AuditLog* const before = is_targets             ? &target_.log
                                   : known != logs_.end() ? known->second.record
                                                          : nullptr;
    std::size_t equal = 0;
    if (before != nullptr) {
      equal = std::min(before->entries.size(), log.entries.size());
      const bool diverges =
          equal == 0 || before->entries[equal - 1].chain != log.entries[equal - 1].chain;
      if (diverges || (is_targets && equal < log.entries.size())) {
        conflicts_.Add(
            fmt::format("audit log {}: {} has {} entries, {} has {}, and one does not "
                        "continue the other",
                        log.id, source.name, log.entries.size(),
                        is_targets ? target_.name : known->second.store, before->entries.size()));
        return;
      }
    }
    if (equal == log.entries.size()) return;
    logs_[log.id] = {source.name, &log};
    NeedKey(source, log.key_id);
    AuditLog missing = log;
    missing.entries.erase(
        missing.entries.begin(),
        missing.entries.begin() + static_cast<std::ptrdiff_t>(target_entries_[log.id]));
    std::erase_if(plan_.logs, [&](const AuditLog& each) { return each.id == log.id; });
    plan_.logs.push_back(std::move(missing));
  }

  void NeedKey(const StoreImage& source, const std::string& key_id) {
    const auto key = source.keys.find(key_id);
    if (key == source.keys.end()) {
      conflicts_.Add(fmt::format("token key {} of {} is missing", key_id, source.name));
      return;
    }
    const auto other = target_.keys.find(key_id);
    if (other != target_.keys.end() && other->second != key->second) {
      conflicts_.Add(fmt::format("{} and {} have different token keys with the same id {}",
                                 source.name, target_.name, key_id));
    }
    if (key_id != target_key_id_) plan_.keys[key_id] = key->second;
  }

  const StoreImage& target_;
  const std::string target_key_id_;
  std::map<std::string, Known<Tenant>> tenants_;
  std::map<std::string, Known<Token>> tokens_;
  std::map<std::string, Known<AuditLog>> logs_;
  std::map<std::string, std::size_t> target_entries_;  // of old logs
  Conflicts conflicts_;
  CopyPlan plan_;
};

}  // namespace

std::string DescribeState(const Tenant& tenant) {
  return fmt::format("{}{}{}", DescribeQuota(tenant.quota),
                     tenant.encryption_required ? ", encryption required" : "",
                     tenant.suspended ? ", suspended" : "");
}

std::string AuditLogId(const std::vector<AuditEntry>& entries) {
  std::string id;
  if (entries.empty()) return id;
  for (const char byte : entries.front().chain.substr(0, kLogIdBytes))
    id += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return id;
}

absl::Status CheckLogs(const StoreImage& image) {
  if (absl::Status status = CheckLog(image, image.log); !status.ok()) return status;
  for (const AuditLog& log : image.old_logs) {
    if (absl::Status status = CheckLog(image, log); !status.ok()) return status;
  }
  return absl::OkStatus();
}

std::size_t CopyPlan::entry_count() const {
  std::size_t count = 0;
  for (const AuditLog& log : logs) count += log.entries.size();
  return count;
}

absl::StatusOr<CopyPlan> PlanCopy(const std::vector<StoreImage>& sources,
                                  const StoreImage& target) {
  Planner planner(target);
  for (const StoreImage& source : sources) planner.Add(source);
  return planner.Finish();
}

}  // namespace phub::server
