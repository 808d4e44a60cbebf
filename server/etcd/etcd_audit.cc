// The audit log of the control store in etcd, see etcd_store.h.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "common/base/status_text.h"
#include "server/etcd/cluster.h"
#include "server/etcd/etcd_store.h"
#include "server/tenant/audit_chain.h"

namespace phub::server::etcd {
namespace {

constexpr std::int64_t kEntriesPerRequest = 500;
constexpr std::int64_t kVerifiedEntries = 1000;
constexpr std::uint64_t kBytesPerEntry = 512;

}  // namespace

absl::StatusOr<std::vector<AuditEntry>> EtcdStore::ReadEntries(std::int64_t after,
                                                               std::int64_t count) {
  pb::RangeRequest request;
  request.set_key(Full(AuditKey(after + 1)));
  request.set_range_end(EndOf(Full(kAuditKeys)));
  request.set_limit(count);
  const auto page = client_->Range(request);
  if (!page.ok()) return page.status();
  std::vector<AuditEntry> entries;
  for (const pb::KeyValue& pair : page->kvs()) {
    const std::string key = pair.key().substr(prefix_.size());
    auto entry = records_.ToEntry(key, pair.value());
    if (!entry.ok()) {
      return absl::Status(entry.status().code(),
                          fmt::format("{} {}", key, MessageOf(entry.status())));
    }
    entries.push_back(*std::move(entry));
  }
  return entries;
}

absl::StatusOr<std::vector<AuditEntry>> EtcdStore::ReadAudit(std::int64_t after,
                                                             std::int64_t count) {
  std::vector<AuditEntry> entries;
  while (count > 0) {
    auto page = ReadEntries(after, std::min(count, kEntriesPerRequest));
    if (!page.ok()) return page.status();
    if (page->empty()) break;
    after = page->back().sequence;
    count -= static_cast<std::int64_t>(page->size());
    std::move(page->begin(), page->end(), std::back_inserter(entries));
  }
  return entries;
}

absl::StatusOr<std::int64_t> EtcdStore::LastAuditSequence() {
  std::int64_t revision = 0;
  const auto head = mirror_.Head(revision);
  if (!head.ok()) return head.status();
  return head->sequence;
}

absl::Status EtcdStore::VerifyAudit() {
  std::int64_t revision = 0;
  const auto head = mirror_.Head(revision);
  if (!head.ok()) return head.status();
  const std::int64_t first = std::max<std::int64_t>(1, head->sequence - kVerifiedEntries);
  const auto entries = ReadAudit(first - 1, head->sequence - first + 1);
  if (!entries.ok()) return entries.status();
  std::int64_t expected = first;
  std::string before;
  for (const AuditEntry& entry : *entries) {
    // If this is only the end of the log, its first entry only begins the chain.
    const bool begins = expected == first && first > 1;
    absl::Status checked = begins && entry.sequence == expected
                               ? absl::OkStatus()
                               : CheckEntry(token_key_, entry, expected, before);
    if (!checked.ok()) return checked;
    before = entry.chain;
    ++expected;
  }
  if (expected != head->sequence + 1 || before != head->chain) {
    return absl::DataLossError(fmt::format("audit entry {} is missing", expected));
  }
  return absl::OkStatus();
}

DiskSpace EtcdStore::Space() const {
  DiskSpace space;
  std::int64_t revision = 0;
  if (const auto head = mirror_.Head(revision); head.ok()) {
    space.used_bytes = static_cast<std::uint64_t>(head->sequence) * kBytesPerEntry;
  }
  return space;
}

}  // namespace phub::server::etcd
