#include "client/session/rack_leave.h"

#include <utility>

#include "client/session/rack_join.h"

namespace phub::client {
namespace {

constexpr DurationNs kLeavePatience = 120 * kSecond;
// Longer than a front of the control port needs to start on a busy machine.
constexpr DurationNs kLeavePatienceWithoutLanes = 30 * kSecond;

}  // namespace

Status LeaveRunningRack(RackCalls& calls, const OpenLanes& lanes, const Clock& clock) {
  const TimeNs begun_at = clock.Now();
  std::vector<int> attempts(calls.links().size(), 0);
  std::vector<bool> alive_before;
  for (const auto& link : calls.links()) alive_before.push_back(lanes.HasAny(*link));
  const auto patient = [&](const DaemonLink& link) {
    const DurationNs waited = clock.Now() - begun_at;
    if (lanes.HasAny(link)) return waited < kLeavePatience;
    return waited <
           (alive_before[link.position] ? kLeavePatienceWithoutLanes : calls.leave_timeout());
  };
  const auto answers = calls.Each<v1::LeaveResponse>(
      "Leave", calls.All(),
      [&](DaemonLink& link, auto done) {
        ++attempts[link.position];
        link.channel->Call<rpc::Leave>(LeaveRequestOf(link), calls.leave_timeout(),
                                       std::move(done));
      },
      patient);
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const absl::Status& answer = answers[i].status();
    const bool gone = absl::IsNotFound(answer) && attempts[i] > 1;
    if (!answer.ok() && !gone) return NamedCallStatus("Leave", calls.links()[i]->endpoint, answer);
  }
  return Status();
}

}  // namespace phub::client
