// Joining a job at every daemon of a rack, so that the rank is taken by all of them or by none.
//
// In the list's order: the daemon that was connected to says who the rack is; Join reserves at
// each, the anchor first, whose incarnation the others take over; when all have agreed, Commit
// makes it stand at each. Whatever goes wrong before that, the reservations are given back, and if
// this process dies meanwhile they lapse by themselves.
//
// Cold: blocks, one thread.
#pragma once

#include <memory>
#include <string>

#include "client/session/call_waiter.h"
#include "client/session/connector.h"
#include "client/session/daemon_link.h"
#include "common/base/clock.h"
#include "phub/client.h"

namespace phub::client {

// Versions of the session protocol that this build speaks.
inline constexpr std::uint32_t kProtocolVersionMin = 1;
inline constexpr std::uint32_t kProtocolVersionMax = 1;

inline constexpr std::uint32_t kDaemonsMax = 64;  // of one rack
inline constexpr std::uint32_t kLanesMax = 4096;  // of one worker: core loops of the whole rack

struct JoinSettings {
  Endpoint daemon;  // any of the rack
  std::string tenant = {};
  DurationNs call_timeout = 0;
  JobOptions options;
};

// The rank's place at every daemon, committed; links in the list's order. Errors name the daemon.
Result<DaemonLinks> JoinRack(const JoinSettings& settings, Connector& connector,
                             CallWaiter& waiter);

// The request that gives the rank back. verdict, unless empty: why the job has ended elsewhere.
v1::LeaveRequest LeaveRequestOf(const DaemonLink& link, const std::string& verdict = {});
// Gives the rank back at every daemon, all at once. The first error, with the daemon's name.
// run_is_over: a daemon has said so, at which the rank has not even a reservation.
Status LeaveRack(const DaemonLinks& links, DurationNs timeout, CallWaiter& waiter,
                 const std::string& verdict = {}, bool run_is_over = false);

}  // namespace phub::client
