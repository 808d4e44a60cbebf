// Error messages of a job: who died or violated the protocol, where, and how it was detected. Pure
// functions.
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

// A failed control call. An error that the daemon returned is passed on unchanged. If the daemon
// could not be reached, its name is added.
Status CallStatus(std::string_view call, const Endpoint& daemon, const absl::Status& status);
// The same for calls to several daemons: always adds the daemon's name.
Status NamedCallStatus(std::string_view call, const Endpoint& daemon, const absl::Status& status);
// The daemon's verdict for the job.
Status FaultStatus(const v1::Fault& fault);
// The daemon has not answered heartbeats for `age`.
Status DaemonSilent(const Endpoint& daemon, DurationNs age, std::string_view job,
                    std::uint32_t rank);
// All lanes to the daemon have been silent for `silence`. control_answers: its heartbeats arrive.
Status LanesSilent(const Endpoint& daemon, DurationNs silence, bool control_answers,
                   std::string_view job, std::uint32_t rank);
// The lane to that core has been silent for `silence`, although other lanes to the daemon work.
Status LaneSilent(const Endpoint& daemon, std::uint32_t core, DurationNs silence,
                  std::string_view job, std::uint32_t rank);
// The daemon answers but no longer knows this worker (NOT_FOUND): it was restarted.
Status SessionUnknown(const Endpoint& daemon, std::string_view job, std::uint32_t rank);
// The control stream ended although this rank was not leaving.
Status StreamLost(const Endpoint& daemon, const absl::Status& status, std::string_view job,
                  std::uint32_t rank);
// A lane closed. kInternal: the daemon violated the lane protocol. kUnavailable: the connection was
// lost, possibly because another rank or daemon failed.
Status LaneLost(const Endpoint& daemon, std::uint32_t core, const LaneClosed& closed,
                std::string_view job, std::uint32_t rank);
// All lanes to a daemon were lost, and its control cannot be reached either.
Status ControlLostToo(const Status& lane_lost, const absl::Status& control);
// Policy wait: the connection described by `lost` did not recover within `waited`.
Status WaitedInVain(const Status& lost, DurationNs waited);

// True if a retry can help: the daemon could not be reached, or the call was interrupted. False if
// the daemon has answered.
bool IsPassing(const absl::Status& status);

}  // namespace phub::client
