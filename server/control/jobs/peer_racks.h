// Interfaces to racks/, the room that communicates with other racks, for the rooms below it. Under
// control's lock. For jobs that do not span racks, the calls have no effect and report that nothing
// is missing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "phub/v1/peer.pb.h"
#include "server/control/answers.h"
#include "server/control/jobs/job.h"
#include "server/control/jobs/peer_message.h"

namespace phub::server {

// The parts of a job in other racks (racks/rack_jobs.h).
class PeerRacks {
 public:
  virtual ~PeerRacks() = default;

  // Whether every rack is connected and has the first `batches` batches of the job's keys, so that
  // ranks may use them.
  virtual bool HaveKeys(const Job& job, std::uint32_t batches) const = 0;
  // How large a message with a batch of keys may be; 0: the job does not span racks.
  virtual std::size_t KeysBytesMax(const Job& job) const = 0;
  // A message with the newest batch of keys.
  virtual void TellOfKeys(const Job& job, const SharedPeerMessage& message) = 0;

  // Every rank of this rack has reached the job's next barrier. Returns whether the ranks of all
  // racks have.
  virtual bool ReachedBarrier(Job& job) = 0;
  // Describes the ranks of other racks that have left. After that, no barrier can complete.
  virtual std::vector<std::string> DepartedRanks(const Job& job) const = 0;

  virtual void TellOfDeparture(const Job& job, Rank rank) = 0;
  // Ends the job if all ranks of all racks have left.
  virtual void EndIfAllLeft(Job& job) = 0;
  // Whether all ranks of this rack have left, but ranks of other racks may not have.
  virtual bool IsLeaving(const Job& job) const = 0;

  // Control was busy and could not receive messages of other racks: extends their liveness
  // deadlines.
  virtual void ForgiveSilence(DurationNs duration) = 0;

  // Rank 0 could not load a checkpoint.
  virtual void TellOfRefusedLoad(const Job& job, std::uint64_t load_number, int code,
                                 const std::string& why) = 0;
};

// Groups that have members in several racks (racks/rack_groups.h).
class GroupRacks {
 public:
  virtual ~GroupRacks() = default;
  // How large a request with a batch of keys may be.
  virtual std::size_t BatchBytesMax() const = 0;
  // A rank of this rack adds the group's next batch of keys, which are right by themselves. Rack 0
  // is asked once, however many ranks do. `then` is called when this rack has the batch, or with
  // the reason why it never will.
  virtual void AskForBatch(Job& job, Rank rank, std::shared_ptr<const v1::AddKeysRequest> request,
                           std::function<void(const absl::Status&)> then) = 0;
  // Whether every rack of the group has its first `batches` batches and its lanes.
  virtual bool HaveBatches(const Job& job, const Group& group, std::uint32_t batches) const = 0;
  // This rack has taken a step of the group's removal. GroupKeys::GoOnRemoving is called when all
  // racks of the group have taken it.
  virtual void TellOfRemoval(Job& job, const Group& group, v1::PeerGroupStep step) = 0;
};

// Is notified of ranks that are lost and may return (racks/rack_waiting.h).
class AbsenceListener {
 public:
  virtual ~AbsenceListener() = default;
  virtual void OnAbsence(const Job& job, Rank rank) = 0;
  virtual void OnReturn(const Job& job, Rank rank, bool restarted) = 0;
  // What to send a newly attached rank about the first lost rank of another rack from this rank of
  // the job on, if the job waits for any.
  virtual std::optional<v1::SessionEvent> FirstAwaitedFrom(const Job& job,
                                                           std::uint32_t rank) const = 0;
};

// Is notified of rounds that every rank of this rack has pushed and that take much longer than
// usual (racks/rack_late_rounds.h).
class LateRoundListener {
 public:
  virtual ~LateRoundListener() = default;
  // usual: the usual duration of an iteration.
  virtual void OnRoundWaits(Job& job, const StallReport::Round& round, DurationNs usual) = 0;
};

// Is notified of ranks that have not joined (racks/rack_arrivals.h).
class ArrivalListener {
 public:
  virtual ~ArrivalListener() = default;
  // Ranks of this rack are missing. True if the listener notifies the ranks that wait, together
  // with what other racks report.
  virtual bool OnMissing(Job& job, const v1::RanksMissing& missing) = 0;
  // A process that wanted to be a missing rank was refused; the ranks of this rack are notified.
  virtual void OnRefused(const Job& job, const v1::RankRefused& refused) = 0;
};

// How long a rank waits for rack 0 to open its job, in liveness timeouts.
inline constexpr DurationNs kHeldTimeouts = 2;
// How much longer a rank waits if the topology must be measured first, which takes a survey of some
// racks. Together with kHeldTimeouts it must stay below the 30 s that workers wait.
inline constexpr DurationNs kSurveyPatience = 24 * kSecond;

// Opens jobs that span racks (racks/rack_opening.h).
class JobOpener {
 public:
  virtual ~JobOpener() = default;
  // Whether this rack can open jobs itself at once: it is rack 0 and knows the topology.
  virtual bool OpensAtOnce() const = 0;
  virtual absl::StatusOr<Job*> Open(const v1::JoinRequest& request,
                                    const JobSettings& settings) = 0;
  // Otherwise ask rack 0 to open the job. The rank is answered when rack 0 has opened it, or after
  // a timeout.
  virtual void AskToOpen(const v1::JoinRequest& request, std::string_view peer_address,
                         const JobSettings& settings, Answer<v1::JoinResponse> answer) = 0;
  // What ranks that join the job wait for now, and what to do; empty: they do not wait.
  virtual std::string WhatRanksWaitFor(const std::string& tenant, const std::string& job) const = 0;
};

// Admits lanes from other racks (racks/peer_lanes.h).
class PeerLaneAdmission {
 public:
  virtual ~PeerLaneAdmission() = default;
  // Uses up the nonce.
  virtual wire::LaneRefusal Check(const wire::LaneHello& hello, bool encrypted) = 0;
  // The nonce granted for the lane, if it is valid now. Does not use it up.
  virtual std::optional<wire::Nonce> FindNonce(const wire::LaneHello& hello) = 0;
  virtual void Attach(const wire::LaneHello& hello,
                      std::unique_ptr<transport::Connection> connection,
                      std::uint8_t transport_index, std::string description) = 0;
};

}  // namespace phub::server
