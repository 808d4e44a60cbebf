// The events that a rank's stream has not sent yet. Its size does not depend on how many events
// occur: an event replaces the one of its kind that waits, because the newer one makes it obsolete.
// So a client that does not read costs at most one event of each kind, and one for each lost or
// returned rank. The client then learns the latest state, but not every step to it.
//
// Order: where the job is saved comes first, since a client stops at the failure of its job.
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "phub/v1/session.pb.h"

namespace phub::server {

class EventQueue {
 public:
  // Returns whether the event replaced one that waited.
  bool Push(const v1::SessionEvent& event);
  // Takes the next event. REQUIRES: !empty().
  v1::SessionEvent Pop();
  bool empty() const { return size() == 0; }
  std::size_t size() const;
  void Clear() { *this = {}; }

 private:
  // Whether a rank is awaited or has returned.
  struct RankNews {
    std::optional<v1::RankAwaited> awaited;
    bool restarted = false;  // a return: another process took over the rank
  };
  bool PushReturned(const v1::RankReturned& returned);

  std::optional<v1::SavedState> saved_;
  std::optional<v1::JobFailed> failed_;
  std::optional<v1::DaemonDraining> draining_;
  std::optional<v1::RanksMissing> missing_;
  std::optional<v1::RankRefused> refused_;
  std::optional<v1::RoundLate> late_;
  std::optional<v1::DumpRequested> dump_;
  std::map<std::uint32_t, RankNews> ranks_;
  std::optional<v1::HeartbeatAnswer> heartbeat_;
};

}  // namespace phub::server
