// The place of this daemon in its cluster: a record under its id (/daemons/ID), with an etcd lease
// that it keeps alive. All that it holds in etcd has this lease. So if the daemon is gone, or cut
// off, for the grace, etcd removes the record and the grants at once.
//
// A daemon that starts again under its id ends the lease of its former instance. It recognizes a
// dead instance by a lease that has not been kept alive for a few seconds. One thread at a time.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "server/etcd/client.h"
#include "server/etcd/members/seat.h"
#include "server/etcd/record.h"

namespace phub::server::etcd {

struct PlaceOptions {
  std::string prefix;
  std::int64_t cluster_revision = 0;
  DaemonRecord self;
  DurationNs grace = 0;    // quota_grace
  view::Place place = {};  // in the view; empty: none
};

// How often a lease is kept alive, and for how long it may not have been if its daemon lives.
inline constexpr DurationNs kKeepPeriod = kSecond;
inline constexpr DurationNs kSilentMax = 5 * kSecond;

class DaemonPlace {
 public:
  DaemonPlace(Client& client, const Records& records, PlaceOptions options)
      : client_(client),
        records_(records),
        options_(std::move(options)),
        seat_(client, records, options_.prefix, options_.cluster_revision, SelfOf(options_)) {}

  // With a new lease, and with the place in the view. Waits for a few seconds if another instance
  // of this daemon has them. ALREADY_EXISTS: it lives, or another daemon has the place; the message
  // names both. Other errors as of Seat::Claim.
  absl::Status Take();
  // NOT_FOUND: the lease has ended, and everything that had it is gone.
  absl::Status Keep();
  void Leave();

  const DaemonRecord& self() const { return options_.self; }
  const std::string& prefix() const { return options_.prefix; }
  std::int64_t cluster_revision() const { return options_.cluster_revision; }
  std::int64_t lease() const { return lease_; }        // 0: the daemon has no place
  std::int64_t revision() const { return revision_; }  // the revision that the record has
  // Until then etcd certainly keeps what has the lease.
  TimeNs end() const { return end_; }

 private:
  static ClusterMember SelfOf(const PlaceOptions& options);
  absl::Status TryToTake(std::int64_t lease, std::int64_t& other_lease, std::string& other,
                         bool& taken);
  absl::Status AwaitEndOf(std::int64_t lease, const std::string& other);

  Client& client_;
  const Records& records_;
  const PlaceOptions options_;
  Seat seat_;
  const SystemClock clock_;
  std::int64_t lease_ = 0;
  std::int64_t revision_ = 0;
  TimeNs end_ = 0;
};

}  // namespace phub::server::etcd
