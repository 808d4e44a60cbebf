// Racks whose topology is measured (`topology` is "probe"): rack 0 has it measured once it has
// heard of every rack, and again when a job needs it after that had failed. Operators may say
// another one. Jobs wait for it; the first one that stands is never taken back, only replaced. The
// topology goes to the other racks with each job that was planned for it, so nobody has to remember
// one.
#pragma once

#include <deque>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/control/state.h"

namespace phub::server {

// Rack 0 has none yet, so no job can be planned.
bool AwaitsSurvey(const Control::State& state);
// Begins one if it is time.
void AdvanceSurvey(Control::State& state);
// What rack 0 plans for. REQUIRES: !AwaitsSurvey.
const plan::Topology& TopologyToPlanFor(const Control::State& state);
// What the job's plan was made for. FAILED_PRECONDITION: it is not for rack 0 to say.
// INVALID_ARGUMENT: it is no topology of these racks.
absl::StatusOr<std::shared_ptr<const plan::Topology>> TopologyOfJob(const Control::State& state,
                                                                    const v1::PeerJob& job);
// How long a rank waits for rack 0 to open its job, in liveness timeouts.
inline constexpr DurationNs kHeldTimeouts = 2;
// How long it waits for the topology beyond what opening takes anyway: a survey of some racks.
// Workers wait for half a minute.
inline constexpr DurationNs kSurveyPatience = 24 * kSecond;
// What has waited and may be looked at again. Not requests while there is no topology, but for
// those whose ranks were refused meanwhile: they are forgotten.
std::deque<DeferredMessage> TakeDeferred(Control::State& state);
// rack_messages.cc: the job that is asked for is not opened.
void RefuseRequest(Control::State& state, RackIndex from, const v1::PeerMessage& message,
                   const absl::Status& status);
// Until when a rank waits for rack 0 to open its job.
TimeNs PatienceOf(const Control::State& state, const HeldJoin& held);
std::string WhyNotOpened(const Control::State& state);  // until then

}  // namespace phub::server
