// One attempt to delete a tenant that all daemons of a cluster may use. A daemon starts jobs within
// its grant without asking etcd, so each one must agree first:
//
//   1. This daemon writes /removals/TENANT, with a lease of a few seconds.
//   2. Each daemon then starts no more jobs of the tenant. It gives back what its jobs do not use,
//      and writes to its grant what they use (grant_settling.cc).
//   3. If every daemon in /daemons has answered and none uses anything, one transaction deletes the
//      tenant, its tokens and what is left of its grants. It compares the revisions of the removal,
//      of all grants of the tenant and of all daemons. So a daemon that starts, or that answers
//      something else, makes it fail, and they are read again.
//   4. Otherwise the removal is withdrawn, and daemons start jobs again. If this daemon dies, the
//      lease ends.
//
// A daemon that is cut off does not answer, and the tenant stays. Once its lease has ended, it is
// not asked; it starts no jobs either then (Ledger::SetGrantsEnd). State thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "server/etcd/client.h"
#include "server/etcd/record.h"
#include "server/tenant/removal_plan.h"

namespace phub::server::etcd {

class Removal {
 public:
  // `record` has the tenant, this daemon, and a random id.
  Removal(Client& client, const Records& records, std::string prefix, std::int64_t cluster_revision,
          RemovalRecord record)
      : client_(client),
        records_(records),
        prefix_(std::move(prefix)),
        cluster_revision_(cluster_revision),
        record_(std::move(record)) {}
  // Withdraws it.
  ~Removal();
  Removal(const Removal&) = delete;
  Removal& operator=(const Removal&) = delete;

  // Step 1. FAILED_PRECONDITION: another daemon deletes the tenant now.
  absl::Status Begin();
  // Waits for the answers, for a few seconds in all. FAILED_PRECONDITION names daemons.
  absl::Status Await();
  // What the transaction compares and removes besides the tenant. REQUIRES: Await() has returned
  // OK.
  void AddTo(pb::TxnRequest& request) const;

 private:
  absl::StatusOr<std::vector<RemovalAnswer>> ReadAnswers();
  std::string Full(std::string_view key) const { return prefix_ + std::string(key); }

  Client& client_;
  const Records& records_;
  const std::string prefix_;
  const std::int64_t cluster_revision_;
  const RemovalRecord record_;
  const SystemClock clock_;
  TimeNs deadline_ = 0;
  std::int64_t lease_ = 0;
  std::int64_t revision_ = 0;  // the removal's
  std::int64_t read_at_ = 0;   // the revision at which the answers were read
};

}  // namespace phub::server::etcd
