#include "server/etcd/store_copy.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/base/host_name.h"
#include "common/base/printable.h"
#include "common/base/secret_file.h"
#include "common/base/status_text.h"
#include "server/etcd/token_key_file.h"
#include "server/etcd/watch_loop.h"
#include "server/tenant/audit_chain.h"
#include "server/tenant/token.h"
#include "server/tenant/token_key.h"

namespace phub::server::etcd {
namespace {

constexpr std::int64_t kRangePage = 500;
constexpr int kPutsPerTransaction = 100;  // etcd's limit is 128 operations and 1.5 MiB
constexpr DurationNs kHoldLease = 30 * kSecond;
constexpr std::size_t kTextBytesShown = 200;

absl::Status About(const std::string& key, const absl::Status& status) {
  return absl::Status(status.code(),
                      fmt::format("{} {}", Printable(key, kTextBytesShown), MessageOf(status)));
}

std::string Describe(const FreezeRecord& freeze) {
  return fmt::format("{} (process {} on host {})", Printable(freeze.why, kTextBytesShown),
                     freeze.process, Printable(freeze.host, kTextBytesShown));
}

FreezeRecord ThisProcess(const std::string& why) {
  return {.why = why, .host = HostName(), .process = getpid(), .at = WallNow()};
}

bool HasEnded(const FreezeRecord& freeze) {
  return freeze.host == HostName() && kill(static_cast<pid_t>(freeze.process), 0) != 0 &&
         errno == ESRCH;
}

}  // namespace

ClusterCopy::~ClusterCopy() {
  if (lease_ != 0) static_cast<void>(client_.RevokeLease(lease_));  // otherwise it ends by itself
}

absl::Status ClusterCopy::Open() {
  pb::RangeRequest request;
  request.set_key(Full(kClusterKey));
  const auto found = client_.Range(request);
  if (!found.ok()) return found.status();
  if (found->kvs().empty()) {
    return absl::NotFoundError(fmt::format("{} has no control store", options_.name));
  }
  auto cluster = FindCluster(client_, options_.prefix, options_.token_key_path, random_);
  if (!cluster.ok()) return cluster.status();
  cluster_ = *std::move(cluster);
  records_ = std::make_unique<Records>(cluster_.token_key, cluster_.id);
  return absl::OkStatus();
}

absl::Status ClusterCopy::Found(const std::string& key) {
  if (absl::IsNotFound(ReadTokenKeyFile(options_.token_key_path).status())) {
    const absl::Status written =
        WriteFileDurably(options_.token_key_path, key, kSecretFileMode, /*replace=*/false);
    if (!written.ok()) return written;
  }
  const auto founded = FindCluster(client_, options_.prefix, options_.token_key_path, random_);
  return founded.ok() ? Open() : founded.status();
}

absl::StatusOr<std::vector<pb::KeyValue>> ClusterCopy::ReadRange(std::string_view begin,
                                                                 std::int64_t revision) {
  std::vector<pb::KeyValue> pairs;
  pb::RangeRequest request;
  request.set_key(Full(begin));
  request.set_range_end(EndOf(request.key()));
  request.set_limit(kRangePage);
  request.set_revision(revision);
  for (;;) {
    auto page = client_.Range(request);
    if (!page.ok()) return page.status();
    for (pb::KeyValue& pair : *page->mutable_kvs()) pairs.push_back(std::move(pair));
    if (!page->more() || page->kvs().empty()) return pairs;
    request.set_key(pairs.back().key() + '\0');
  }
}

absl::StatusOr<StoreImage> ClusterCopy::Read() {
  StoreImage image;
  image.name = options_.name;
  image.key = cluster_.token_key;
  image.log.key_id = records_->key_id();
  image.log.source = options_.name;
  std::int64_t revision = 0;
  if (absl::Status status = ReadRecords(image, revision); !status.ok()) return status;
  if (absl::Status status = ReadLogs(image, revision); !status.ok()) return status;
  if (absl::Status status = ReadKeys(image); !status.ok()) return status;
  return image;
}

absl::Status ClusterCopy::ReadRecords(StoreImage& image, std::int64_t& revision) {
  const auto items = ReadAll(client_, options_.prefix, revision);
  if (!items.ok()) return items.status();
  HeadRecord head;
  bool has_head = false;
  for (const Item& item : *items) {
    absl::Status status;
    if (item.key == kHeadKey) {
      const auto read = records_->ToHead(item.value);
      status = read.status();
      if (read.ok()) head = *read;
      has_head = true;
    } else if (item.key.starts_with(kTenantKeys)) {
      const auto read = records_->ToTenant(item.key, item.value);
      status = read.status();
      if (read.ok()) image.tenants.push_back(*read);
    } else if (item.key.starts_with(kTokenKeys)) {
      const auto read = records_->ToToken(item.key, item.value);
      status = read.status();
      if (read.ok()) {
        Token& token = image.tokens.emplace_back(*read);
        if (token.key_id.empty()) token.key_id = records_->key_id();
      }
    }
    if (!status.ok()) return About(item.key, status);
  }
  if (!has_head) return absl::DataLossError(fmt::format("{} in etcd is missing", kHeadKey));
  const auto entries = ReadRange(kAuditKeys, revision);
  if (!entries.ok()) return entries.status();
  for (const pb::KeyValue& pair : *entries) {
    const std::string key = pair.key().substr(options_.prefix.size());
    auto entry = records_->ToEntry(key, pair.value());
    if (!entry.ok()) return About(key, entry.status());
    image.log.entries.push_back(*std::move(entry));
  }
  image.log.id = AuditLogId(image.log.entries);
  const bool ends_well = image.log.entries.empty()
                             ? head.sequence == 0
                             : image.log.entries.back().sequence == head.sequence &&
                                   image.log.entries.back().chain == head.chain;
  if (ends_well) return absl::OkStatus();
  return absl::DataLossError(fmt::format("the last audit entry, {}, is missing", head.sequence));
}

absl::Status ClusterCopy::ReadLogs(StoreImage& image, std::int64_t revision) {
  const auto pairs = ReadRange(kLogKeys, revision);
  if (!pairs.ok()) return pairs.status();
  AuditLog* log = nullptr;  // the one whose entries follow
  std::int64_t count = 0;
  const auto check = [&] {
    if (log == nullptr || count == static_cast<std::int64_t>(log->entries.size()))
      return absl::OkStatus();
    return absl::DataLossError(fmt::format("audit log {} in etcd has {} entries instead of {}",
                                           log->id, log->entries.size(), count));
  };
  for (const pb::KeyValue& pair : *pairs) {
    const std::string key = pair.key().substr(options_.prefix.size());
    if (key.find('/', kLogKeys.size()) == std::string::npos) {
      if (absl::Status status = check(); !status.ok()) return status;
      auto read = records_->ToLog(key, pair.value(), count);
      if (!read.ok()) return About(key, read.status());
      log = &image.old_logs.emplace_back(*std::move(read));
      continue;
    }
    // Entries of a log that was not copied completely have none.
    const bool belongs = log != nullptr && key.starts_with(LogKey(log->id) + "/");
    if (!belongs || count == static_cast<std::int64_t>(log->entries.size())) continue;
    auto entry = records_->ToEntry(key, pair.value());
    if (!entry.ok()) return About(key, entry.status());
    log->entries.push_back(*std::move(entry));
  }
  return check();
}

absl::Status ClusterCopy::ReadKeys(StoreImage& image) {
  image.keys[records_->key_id()] = cluster_.token_key;
  std::vector<std::string> needed;
  for (const Token& token : image.tokens) needed.push_back(token.key_id);
  for (const AuditLog& log : image.old_logs) needed.push_back(log.key_id);
  for (const std::string& id : needed) {
    if (image.keys.contains(id)) continue;
    auto key = ReadOtherTokenKey(options_.token_key_path, id);
    if (!key.ok()) return key.status();
    image.keys[id] = *std::move(key);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::int64_t> ClusterCopy::FrozenRevision(FreezeRecord& freeze,
                                                         std::int64_t& lease) {
  pb::RangeRequest request;
  request.set_key(Full(kFrozenKey));
  const auto found = client_.Range(request);
  if (!found.ok()) return found.status();
  if (found->kvs().empty()) return 0;
  lease = found->kvs(0).lease();
  auto read = records_->ToFreeze(found->kvs(0).value());
  if (!read.ok()) return About(std::string(kFrozenKey), read.status());
  freeze = *std::move(read);
  return found->kvs(0).mod_revision();
}

absl::Status ClusterCopy::Send(pb::TxnRequest& request) {
  *request.add_compare() = HasRevision(Full(kClusterKey), cluster_.revision);
  const auto answer = client_.Txn(request);
  if (!answer.ok()) return answer.status();
  if (answer->succeeded()) return absl::OkStatus();
  return absl::AbortedError(
      fmt::format("{} was changed meanwhile, or etcd's answer was lost; try again", options_.name));
}

absl::Status ClusterCopy::Commit(pb::TxnRequest request, std::int64_t frozen,
                                 const AuditNote& note) {
  pb::RangeRequest get;
  get.set_key(Full(kHeadKey));
  const auto found = client_.Range(get);
  if (!found.ok()) return found.status();
  if (found->kvs().empty()) return absl::DataLossError("/head in etcd is missing");
  const auto head = records_->ToHead(found->kvs(0).value());
  if (!head.ok()) return About(std::string(kHeadKey), head.status());
  const AuditEntry entry = NextEntry(cluster_.token_key, head->sequence, head->chain, note);
  *request.add_compare() = HasRevision(get.key(), found->kvs(0).mod_revision());
  *request.add_compare() = HasRevision(Full(kFrozenKey), frozen);
  *request.add_success() = Put(Full(AuditKey(entry.sequence)), records_->OfEntry(entry, ""));
  *request.add_success() = Put(get.key(), records_->OfHead({entry.sequence, entry.chain}));
  return Send(request);
}

absl::Status ClusterCopy::Freeze(const std::string& why, const AuditNote& note) {
  FreezeRecord known;
  std::int64_t lease = 0;
  const auto revision = FrozenRevision(known, lease);
  if (!revision.ok()) return revision.status();
  if (*revision != 0 && lease == 0) return absl::OkStatus();
  if (*revision != 0) {
    return absl::FailedPreconditionError(
        fmt::format("{} is frozen: {}; try again", options_.name, Describe(known)));
  }
  pb::TxnRequest request;
  *request.add_success() = Put(Full(kFrozenKey), records_->OfFreeze(ThisProcess(why)));
  return Commit(std::move(request), 0, note);
}

absl::Status ClusterCopy::Thaw(const AuditNote& note) {
  FreezeRecord known;
  std::int64_t lease = 0;
  const auto revision = FrozenRevision(known, lease);
  if (!revision.ok()) return revision.status();
  if (*revision == 0) return absl::NotFoundError(options_.name + " is not frozen");
  pb::TxnRequest request;
  request.add_success()->mutable_request_delete_range()->set_key(Full(kFrozenKey));
  return Commit(std::move(request), *revision, note);
}

absl::Status ClusterCopy::Hold(const std::string& why) {
  FreezeRecord known;
  std::int64_t its_lease = 0;
  const auto revision = FrozenRevision(known, its_lease);
  if (!revision.ok()) return revision.status();
  if (*revision != 0 && its_lease == 0) {
    return absl::FailedPreconditionError(
        fmt::format("{} is frozen, because {}; to use it again, run phubctl store thaw with it",
                    options_.name, Describe(known)));
  }
  if (*revision != 0 && !HasEnded(known)) {
    return absl::FailedPreconditionError(
        fmt::format("{} is frozen for a moment, because {}; try again after {} s", options_.name,
                    Describe(known), kHoldLease / kSecond));
  }
  const auto lease = client_.GrantLease(kHoldLease);
  if (!lease.ok()) return lease.status();
  lease_ = lease->id();
  pb::TxnRequest request;
  *request.add_compare() = HasRevision(Full(kFrozenKey), *revision);
  *request.add_success() = Put(Full(kFrozenKey), records_->OfFreeze(ThisProcess(why)));
  request.mutable_success(0)->mutable_request_put()->set_lease(lease_);
  if (absl::Status status = Send(request); !status.ok()) return status;
  const auto held = FrozenRevision(known, its_lease);
  if (!held.ok()) return held.status();
  held_revision_ = *held;
  return absl::OkStatus();
}

absl::Status ClusterCopy::Write(const CopyPlan& plan, const AuditNote& note) {
  for (const auto& [id, key] : plan.keys) {
    const absl::Status status = WriteOtherTokenKey(options_.token_key_path, key);
    if (!status.ok()) return status;
  }
  pb::TxnRequest batch;
  const auto flush = [&]() -> absl::Status {
    if (batch.success_size() == 0) return absl::OkStatus();
    const auto kept = client_.KeepLeaseAlive(lease_);
    if (!kept.ok()) return kept.status();
    *batch.add_compare() = HasRevision(Full(kFrozenKey), held_revision_);
    const absl::Status sent = Send(batch);
    batch.Clear();
    return sent;
  };
  const auto put = [&](const std::string& key, const std::string& value) {
    *batch.add_success() = Put(Full(key), value);
    return batch.success_size() < kPutsPerTransaction ? absl::OkStatus() : flush();
  };
  pb::TxnRequest last;
  absl::Status status;
  for (const AuditLog& log : plan.logs) {
    for (const AuditEntry& entry : log.entries) {
      const std::string key = LogEntryKey(log.id, entry.sequence);
      if (status = put(key, records_->OfEntryAt(key, entry, "")); !status.ok()) return status;
    }
    const std::string header = records_->OfLog(log, log.entries.back().sequence);
    if (&log == &plan.logs.back()) {
      *last.add_success() = Put(Full(LogKey(log.id)), header);
    } else if (status = put(LogKey(log.id), header); !status.ok()) {
      return status;
    }
  }
  for (const Tenant& tenant : plan.tenants) {
    status = put(TenantKey(tenant.name), records_->OfTenant(tenant));
    if (!status.ok()) return status;
  }
  for (const Token& token : plan.tokens) {
    if (status = put(TokenKey(token), records_->OfToken(token)); !status.ok()) return status;
  }
  if (status = flush(); !status.ok()) return status;
  last.add_success()->mutable_request_delete_range()->set_key(Full(kFrozenKey));
  return Commit(std::move(last), held_revision_, note);
}

}  // namespace phub::server::etcd
