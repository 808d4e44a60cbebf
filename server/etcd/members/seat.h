// The place of this daemon in the declared view: a record under /places/ with the lease of the
// daemon, and one under /endpoints/ that stays when the lease has ended. A daemon that starts again
// under its id takes its place from its former instance. One thread at a time.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "server/etcd/client.h"
#include "server/etcd/record.h"
#include "server/tenant/membership.h"

namespace phub::server::etcd {

class Seat {
 public:
  // self.place.group is empty: the daemon has no place, and Claim does nothing.
  Seat(Client& client, const Records& records, std::string prefix, std::int64_t cluster_revision,
       ClusterMember self)
      : client_(client),
        records_(records),
        prefix_(std::move(prefix)),
        cluster_revision_(cluster_revision),
        self_(std::move(self)) {}

  // Writes both records. REQUIRES: no other process has this daemon's id. ALREADY_EXISTS: a daemon
  // with another id and a lease has the place; the message names both. NOT_FOUND: the view does not
  // have the place. FAILED_PRECONDITION: there is no view, or a record cannot be read. The view
  // matters only until the first claim: a running daemon keeps its place when the view changes.
  absl::Status Claim(std::int64_t lease);

 private:
  struct Found {
    std::int64_t view_revision = 0;
    std::int64_t place_revision = 0;
  };
  absl::Status TryToClaim(std::int64_t lease, bool& claimed);
  absl::Status Read(Found& found);
  absl::Status CheckViewRecord(const pb::RangeResponse& range) const;
  absl::Status CheckHolder(const pb::KeyValue& pair);

  Client& client_;
  const Records& records_;
  const std::string prefix_;
  const std::int64_t cluster_revision_;
  const ClusterMember self_;
  bool was_claimed_ = false;
};

}  // namespace phub::server::etcd
