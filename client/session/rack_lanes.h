// The lanes of a worker to all core loops of its rack: opens them, chooses each one's transport,
// and owns the connections. A lane's number is its bin: core loops are numbered through all
// daemons.
//
// A reopened lane uses the same transport as before, because keys may be in memory that only shared
// lanes can serve.
//
// A best-effort transport (ClientLaneProvider) gets half of a lane's time if there is another
// transport. Later lanes to a daemon do not try it again after lanes to this daemon have lost that
// much time in total, or after one attempt timed out.
//
// Threads. The joining thread opens lanes, and the reconnecting thread (rack_watch.h) reopens
// broken ones, possibly before all are open; one daemon's lanes at a time. Opening blocks.
// IsShared() and Transports() may be called from any thread after OpenAll().
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/session/call_waiter.h"
#include "client/session/daemon_link.h"
#include "client/session/lane_ways.h"
#include "common/base/clock.h"
#include "common/transport/transport.h"
#include "common/wire/lane_hello.h"
#include "phub/client.h"

namespace phub::client {

struct RackLanesSettings {
  std::string job;
  std::uint32_t rank = 0;
  bool wait = false;  // policy wait: retry lanes that break while they are opened
  std::vector<std::string> sum_endpoints = {};  // [lane]; see SumSockets. Empty: none
};

class RackLanes {
 public:
  // The references must outlive this object.
  RackLanes(RackLanesSettings settings, const LaneWays& ways, const DaemonLinks& links,
            CallWaiter& waiter);

  // Called for each opened lane, to attach it. The connection lives until the lane is opened again,
  // which happens only after it was closed.
  using Opened = std::function<void(std::uint32_t lane, std::uint8_t transport_index,
                                    transport::Connection& connection)>;
  // Opens these lanes of the daemon one after the other; stops at the first failure. Errors of a
  // lane name its core.
  absl::Status Open(const DaemonLink& link, std::span<const std::uint32_t> lanes,
                    DurationNs timeout, const Opened& opened);
  // Opens all lanes of the rack.
  Status OpenAll(DurationNs timeout, const Opened& opened);

  // True if all lanes of the daemon use shared memory.
  bool IsShared(const DaemonLink& link) const { return shared_[link.position]; }

  // The transports of the lanes: "shm", "tcp", "verbs", or several of them with commas.
  std::string Transports() const;

  // Call after the engine has stopped.
  void Clear() { connections_.clear(); }

 private:
  struct Dialled {
    const LaneWay* way = nullptr;
    std::unique_ptr<transport::Connection> connection;
    std::string reason;
  };
  struct Attempt {
    const LaneWay* way = nullptr;
    std::uint32_t number = 0;  // see ClientLanes::attempt_count
  };
  // The attempts to make, the best first.
  std::vector<Attempt> AttemptsFor(std::uint32_t lane) const;
  // Time lost with best-effort transports on lanes to one daemon.
  struct Losses {
    DurationNs time = 0;  // until lanes used another transport
    bool given_up = false;
  };
  struct Hellos {
    std::vector<wire::LaneHello> hellos;  // one for each requested lane
    // From then on they may be too old to use. Max: the daemon does not report their lifetime.
    TimeNs old_at = std::numeric_limits<TimeNs>::max();
  };
  // Open(), with retries under policy wait if a lane broke meanwhile.
  absl::Status OpenPatiently(const DaemonLink& link, std::span<const std::uint32_t> lanes,
                             DurationNs timeout, const Opened& opened);
  absl::StatusOr<Hellos> AskForLanes(const DaemonLink& link, std::span<const std::uint32_t> lanes,
                                     DurationNs timeout) const;
  // One attempt. kUnimplemented: it can never succeed. nonce_used: set if the nonce may have been
  // sent.
  absl::StatusOr<Dialled> DialBy(const Attempt& attempt, const DaemonLink& link, std::uint32_t lane,
                                 const wire::LaneHello& hello, DurationNs timeout,
                                 bool& nonce_used) const;
  absl::StatusOr<Dialled> Dial(const DaemonLink& link, std::uint32_t lane, wire::LaneHello hello,
                               DurationNs timeout);

  const RackLanesSettings settings_;
  const LaneWays& ways_;
  const DaemonLinks& links_;
  CallWaiter& waiter_;
  const SystemClock clock_;
  std::mutex opening_;                                               // held while opening lanes
  std::vector<std::unique_ptr<transport::Connection>> connections_;  // [lane]
  std::vector<const LaneWay*> lane_ways_;                            // [lane]; null: never opened
  std::vector<bool> shared_;                                         // [daemon], fixed by OpenAll()
  std::vector<Losses> losses_;                                       // [daemon]
};

}  // namespace phub::client
