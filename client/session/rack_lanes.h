// The lanes of a worker to all core loops of its rack: opens them, chooses how each travels, and
// keeps the connections. A lane is named by its bin: core loops numbered through all daemons.
//
// A lane that is opened again travels as it did before: keys may live in memory that only shared
// lanes can serve.
//
// A best-effort transport (ClientLaneProvider) is not waited for to the end where there is another
// way: it gets half of a lane's time. Once lanes to a daemon have lost as much by it, or the daemon
// did not answer one in time, later lanes to that daemon do not try it again.
//
// Threads. Whoever joins opens lanes, and the reconnecting thread (rack_watch.h) those that broke,
// which may be before all are open: one daemon's at a time. Opening blocks. IsShared() and
// Transports() from any thread, once OpenAll() is done.
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
  bool wait = false;  // policy wait: what breaks while it is opened is tried again
};

class RackLanes {
 public:
  // All three outlive this object.
  RackLanes(RackLanesSettings settings, const LaneWays& ways, const DaemonLinks& links,
            CallWaiter& waiter);

  // A lane is there: to be attached. The connection is kept until the lane is opened again, which
  // is not before it was closed.
  using Opened = std::function<void(std::uint32_t lane, std::uint8_t transport_index,
                                    transport::Connection& connection)>;
  // Opens these lanes of the daemon's, one after the other; stops at the first that fails. Errors
  // are of the call or of the dialling, and say which core.
  absl::Status Open(const DaemonLink& link, std::span<const std::uint32_t> lanes,
                    DurationNs timeout, const Opened& opened);
  // All lanes of the rack.
  Status OpenAll(DurationNs timeout, const Opened& opened);

  // Every lane of the daemon's is in shared memory.
  bool IsShared(const DaemonLink& link) const { return shared_[link.position]; }

  // What lanes travel by: "shm", "tcp", "verbs", or several of them with commas.
  std::string Transports() const;

  // After the engine has stopped.
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
  // What is to be tried, the best first.
  std::vector<Attempt> AttemptsFor(std::uint32_t lane) const;
  // What best-effort transports have cost the lanes to one daemon.
  struct Losses {
    DurationNs time = 0;  // before lanes went another way
    bool given_up = false;
  };
  struct Hellos {
    std::vector<wire::LaneHello> hellos;  // one for each lane that was asked for
    // Who says one later may come too late. Max: the daemon does not say how long they are good.
    TimeNs old_at = std::numeric_limits<TimeNs>::max();
  };
  // Open(), again where a lane broke meanwhile and policy is wait.
  absl::Status OpenPatiently(const DaemonLink& link, std::span<const std::uint32_t> lanes,
                             DurationNs timeout, const Opened& opened);
  absl::StatusOr<Hellos> AskForLanes(const DaemonLink& link, std::span<const std::uint32_t> lanes,
                                     DurationNs timeout) const;
  // One attempt. kUnimplemented: it cannot succeed. nonce_used: set if the nonce may have left.
  absl::StatusOr<Dialled> DialBy(const Attempt& attempt, const DaemonLink& link,
                                 std::uint32_t lane, const wire::LaneHello& hello,
                                 DurationNs timeout, bool& nonce_used) const;
  absl::StatusOr<Dialled> Dial(const DaemonLink& link, std::uint32_t lane, wire::LaneHello hello,
                               DurationNs timeout);

  const RackLanesSettings settings_;
  const LaneWays& ways_;
  const DaemonLinks& links_;
  CallWaiter& waiter_;
  const SystemClock clock_;
  std::mutex opening_;  // held while lanes are opened
  std::vector<std::unique_ptr<transport::Connection>> connections_;  // [lane]
  std::vector<const LaneWay*> lane_ways_;                            // [lane]; null: never opened
  std::vector<bool> shared_;                                         // [daemon], fixed by OpenAll()
  std::vector<Losses> losses_;                                       // [daemon]
};

}  // namespace phub::client
