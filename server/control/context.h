// The state that all parts of control share: time, randomness, settings, the links to the core
// loops, the memory ledger, counters. Owned by Control and outlives its parts; under control's
// lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "server/control/control_options.h"
#include "server/control/control_turns.h"
#include "server/control/core_link.h"
#include "server/control/counters.h"
#include "server/control/event_log.h"
#include "server/tenant/grants.h"
#include "server/tenant/ledger.h"

namespace phub::server {

// The address where clients open lanes to a core loop.
struct LaneEndpoint {
  std::string host;
  std::uint16_t port = 0;
};

// A draining daemon accepts no new jobs; running jobs may continue until the deadline. See
// admin/draining.h for the rules.
struct DrainState {
  std::atomic<bool> draining = false;  // also read without the lock, by health checks
  bool stopping = false;               // the daemon is shutting down; cannot be undrained
  TimeNs deadline = 0;
  DurationNs timeout = 0;  // default; may change while control runs
};

// Whether the control store works; see tenant/store_writer.h.
struct StateDisk {
  std::string fault;           // empty: they do
  std::uint64_t deferred = 0;  // changes that wait for the disk
  bool shared = false;         // it is in etcd, not on this host's disk
};

// A longer outage extends no waits. Something else is wrong then.
inline constexpr DurationNs kOutageMax = 600 * kSecond;

struct Context {
  Context(const Clock& clock, Random& random, std::vector<CoreHandle> handles,
          ControlOptions options);

  // Counts a refusal, logs it within the budget, and returns its status.
  absl::Status Refuse(ControlCounter counter, absl::Status status);

  // How long one reservation waits for a grant. Another one may take what was granted; then the
  // daemon asks again.
  static constexpr DurationNs kGrantPatience = 5 * kSecond;
  // Calls `then` when this daemon's grant covers a reservation, at once if it does; or with the
  // reason why it cannot be enlarged. Another reservation may still be faster.
  void Cover(const std::string& tenant, const Usage& more, Grants::Then then);

  const Clock& clock;
  Random& random;
  const ControlOptions options;
  const TimeNs started_at;
  CoreLinks cores;
  std::vector<LaneEndpoint> endpoints;  // [core]
  Ledger ledger;
  Grants* grants = nullptr;  // null: quotas are this daemon's own
  ControlCounters counters;
  EventLog log;
  ControlTurns turns;
  DrainState drain;
  StateDisk state_disk;
  // The control port cannot be reached since then; 0: it can. Lost ranks cannot return meanwhile.
  TimeNs outage_since = 0;
  void CoverUntil(TimeNs deadline, const std::string& tenant, const Usage& more, Grants::Then then);
  bool InOutage(TimeNs now) const { return outage_since != 0 && now - outage_since < kOutageMax; }
  // Control was busy for this long and could not receive heartbeats: see Liveness::ForgiveSilence.
  std::function<void(DurationNs)> forgive_silence;
};

// Guards heavy work such as building a shard. Afterwards, it extends the liveness deadlines of the
// workers by the time in which control could not receive heartbeats.
class SilenceGuard {
 public:
  explicit SilenceGuard(const Context& context);
  ~SilenceGuard();
  SilenceGuard(const SilenceGuard&) = delete;
  SilenceGuard& operator=(const SilenceGuard&) = delete;

 private:
  const Context& context_;
  const TimeNs begun_at_;
};

}  // namespace phub::server
