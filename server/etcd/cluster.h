// The record of a cluster in etcd: which cluster it is, and which token key it has. Any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/random.h"
#include "server/etcd/client.h"

namespace phub::server::etcd {

// Parts of transactions.
pb::Compare HasRevision(const std::string& key, std::int64_t revision);
pb::RequestOp Put(const std::string& key, const std::string& value);
pb::RequestOp Get(const std::string& key);
// The end of the range of all keys with this prefix.
std::string EndOf(std::string prefix);

struct Cluster {
  std::string token_key;
  std::string id;
  std::int64_t revision = 0;
};

// Reads the cluster below the prefix and the token key at `path`. Founds the cluster if it does
// not exist, and makes the key if it has none.
// UNAVAILABLE: etcd does not answer. FAILED_PRECONDITION, DATA_LOSS: the key is missing, or is not
// the cluster's.
absl::StatusOr<Cluster> FindCluster(Client& client, const std::string& prefix,
                                    const std::string& path, Random& random);

}  // namespace phub::server::etcd
