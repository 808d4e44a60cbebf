// Joins a job at every daemon of a rack: the rank is taken at all of them or at none.
//
// 1. The daemon of the endpoint returns the list of the rack's daemons.
// 2. Join reserves the rank at each daemon, in the list's order. The first one is the anchor; the
//    others adopt its incarnation.
// 3. After all have agreed, Commit makes the reservations permanent.
// If a step fails, the reservations are returned. If this process dies, they expire.
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

inline constexpr std::uint32_t kDaemonsMax = 64;  // per rack
inline constexpr std::uint32_t kLanesMax = 4096;  // per worker: core loops of the whole rack

inline constexpr DurationNs kNoticeAfter = 5 * kSecond;

struct JoinSettings {
  Endpoint daemon;  // any daemon of the rack
  std::string tenant = {};
  DurationNs call_timeout = 0;
  DurationNs notice_after = kNoticeAfter;  // a join that takes longer says what it waits for
  JobOptions options;
};

// Joins and commits at every daemon. Returns links in the list's order. Errors name the daemon.
Result<DaemonLinks> JoinRack(const JoinSettings& settings, Connector& connector,
                             CallWaiter& waiter);

// The request that returns the rank. verdict: if not empty, the reason why the job has ended.
v1::LeaveRequest LeaveRequestOf(const DaemonLink& link, const std::string& verdict = {});
// Returns the rank at every daemon, all at once. Returns the first error, with the daemon's name.
// run_is_over: another daemon, where this rank has no reservation, has answered that the run ended.
Status LeaveRack(const DaemonLinks& links, DurationNs timeout, CallWaiter& waiter,
                 const std::string& verdict = {}, bool run_is_over = false);

}  // namespace phub::client
