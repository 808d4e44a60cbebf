// The errors of a job, in words: who died or broke the rules, where, and how that was noticed.
// Pure functions.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "client/commands.h"
#include "client/session/endpoint.h"
#include "common/base/clock.h"
#include "phub/status.h"
#include "phub/v1/session.pb.h"

namespace phub::client {

// A control call that failed. What the daemon answered is complete in itself; that it could not be
// asked gets the daemon's name.
Status CallStatus(std::string_view call, const Endpoint& daemon, const absl::Status& status);
// The same where several daemons could have answered: always with the name.
Status NamedCallStatus(std::string_view call, const Endpoint& daemon, const absl::Status& status);
// The daemon's verdict over the job.
Status FaultStatus(const v1::Fault& fault);
// The daemon has not answered heartbeats for `age`.
Status DaemonSilent(const Endpoint& daemon, DurationNs age, std::string_view job,
                    std::uint32_t rank);
// The daemon lives and does not know this worker any more (NOT_FOUND): another process is there
// now.
Status SessionUnknown(const Endpoint& daemon, std::string_view job, std::uint32_t rank);
// The control stream ended although nobody was leaving.
Status StreamLost(const Endpoint& daemon, const absl::Status& status, std::string_view job,
                  std::uint32_t rank);
// A lane ended. kInternal if the daemon broke the lane's rules, which is certain at once;
// kUnavailable if it was lost, for which somebody else may be to blame.
Status LaneLost(const Endpoint& daemon, std::uint32_t core, const LaneClosed& closed,
                std::string_view job, std::uint32_t rank);
// Policy wait: what was lost, and did not come back in `waited`.
Status WaitedInVain(const Status& lost, DurationNs waited);

// Whether asking again later can help: the daemon could not be reached, or broke off. Else it has
// answered.
bool IsPassing(const absl::Status& status);

}  // namespace phub::client
