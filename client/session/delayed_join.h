// A join that takes long says in the program's log what it waits for, for example for the plan of a
// job that spans racks.
#pragma once

#include "absl/status/statusor.h"
#include "client/session/call_waiter.h"
#include "client/session/daemon_link.h"
#include "client/session/rack_join.h"
#include "phub/v1/session.pb.h"

namespace phub::client {

// Joins at this daemon, which must have a channel. Blocks.
absl::StatusOr<v1::JoinResponse> CallJoin(const JoinSettings& settings, DaemonLink& link,
                                          const v1::JoinRequest& request, CallWaiter& waiter);

}  // namespace phub::client
