// A cluster's control store in etcd as one end of `phubctl store copy`. It is not a daemon: it
// takes no place in the cluster and keeps nothing in memory.
//
// /frozen stops changes: every change of a daemon compares it. A source is frozen for good, until
// Thaw(). A target is frozen with a lease while something is copied into it, so that nobody decides
// on half of it; if the copy is interrupted, the lease ends.
//
// Copied logs are below /chains/ID, one entry each, as they were. /chains/ID itself is written
// last; a log without it was not copied completely, and is copied again. One thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/random.h"
#include "server/etcd/client.h"
#include "server/etcd/cluster.h"
#include "server/etcd/record.h"
#include "server/tenant/control_store.h"
#include "server/tenant/store_image.h"

namespace phub::server::etcd {

struct CopyOptions {
  ClientOptions client;
  std::string prefix;
  std::string token_key_path;
  std::string name;  // "etcd:https://a:2379 (/phub)"
};

class ClusterCopy {
 public:
  ClusterCopy(CopyOptions options, Random& random)
      : options_(std::move(options)), random_(random), client_(options_.client) {}
  ~ClusterCopy();
  ClusterCopy(const ClusterCopy&) = delete;
  ClusterCopy& operator=(const ClusterCopy&) = delete;

  // Finds the cluster. NOT_FOUND: no cluster exists below the prefix.
  absl::Status Open();
  // Founds a cluster. Its token key is in the file, or will be `key`.
  absl::Status Found(const std::string& key);
  // Everything, at one revision. DATA_LOSS, FAILED_PRECONDITION: a record cannot be used, or a
  // token key is missing. REQUIRES: Open() or Found(); so do the following.
  absl::StatusOr<StoreImage> Read();
  // Stops changes for good. Has no effect if they are.
  absl::Status Freeze(const std::string& why, const AuditNote& note);
  absl::Status Thaw(const AuditNote& note);
  // Stops changes until Write() or the end of this object. FAILED_PRECONDITION: it is frozen, or
  // another process copies.
  absl::Status Hold(const std::string& why);
  // Writes what the plan has, and the entry last. The token keys are written to files before.
  absl::Status Write(const CopyPlan& plan, const AuditNote& note);

 private:
  absl::StatusOr<std::vector<pb::KeyValue>> ReadRange(std::string_view begin,
                                                      std::int64_t revision);
  absl::Status ReadRecords(StoreImage& image, std::int64_t& revision);
  absl::Status ReadLogs(StoreImage& image, std::int64_t revision);
  absl::Status ReadKeys(StoreImage& image);
  // One transaction that writes an audit entry, if /frozen has this revision.
  absl::Status Commit(pb::TxnRequest request, std::int64_t frozen, const AuditNote& note);
  absl::Status Send(pb::TxnRequest& request);
  absl::StatusOr<std::int64_t> FrozenRevision(FreezeRecord& freeze, std::int64_t& lease);
  std::string Full(std::string_view key) const { return options_.prefix + std::string(key); }

  const CopyOptions options_;
  Random& random_;
  Client client_;
  Cluster cluster_;
  std::unique_ptr<Records> records_;
  std::int64_t lease_ = 0;  // of Hold()
  std::int64_t held_revision_ = 0;
};

}  // namespace phub::server::etcd
