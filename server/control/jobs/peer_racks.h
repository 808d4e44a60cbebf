// What the rooms of one rack's jobs need of the room that talks with other racks. Implemented in
// racks/; under control's lock. Jobs that do not span racks need nothing: each call then says so at
// once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/control/answers.h"
#include "server/control/jobs/job.h"

namespace phub::server {

// The parts of a job in other racks (racks/rack_jobs.h).
class PeerRacks {
 public:
  virtual ~PeerRacks() = default;

  // Ranks may work on the job: every rack is connected and has the first `batches` of its keys.
  virtual bool HaveKeys(const Job& job, std::uint32_t batches) const = 0;
  // INVALID_ARGUMENT: the batch does not fit into one message to another rack.
  virtual absl::Status CheckKeys(const Job& job, const KeySpecs& keys) const = 0;
  virtual void TellOfKeys(const Job& job, std::uint32_t batch) = 0;

  // Every rank here has reached the job's next barrier: whether those of all racks have.
  virtual bool ReachedBarrier(Job& job) = 0;
  // Ranks of other racks that left: no barrier completes any more. For people.
  virtual std::vector<std::string> DepartedRanks(const Job& job) const = 0;

  virtual void TellOfDeparture(const Job& job, Rank rank) = 0;
  // Ends the job if the ranks of all racks have left.
  virtual void EndIfAllLeft(Job& job) = 0;
  // The ranks here have left, and those of other racks perhaps not.
  virtual bool IsLeaving(const Job& job) const = 0;

  // Control was busy itself and has not heard the other racks, either.
  virtual void ForgiveSilence(DurationNs duration) = 0;

  // Rank 0 could not load saved state.
  virtual void TellOfRefusedLoad(const Job& job, std::uint64_t load_number, int code,
                                 const std::string& why) = 0;
};

// Ranks that are lost and may come back (racks/rack_waiting.h).
class AbsenceListener {
 public:
  virtual ~AbsenceListener() = default;
  virtual void OnAbsence(const Job& job, Rank rank) = 0;
  virtual void OnReturn(const Job& job, Rank rank, bool restarted) = 0;
  // Tells a rank that attends for which ranks of other racks the job waits.
  virtual void SendAwaited(const Job& job, EventSink& sink) const = 0;
};

// How long a rank waits for rack 0 to open its job, in liveness timeouts.
inline constexpr DurationNs kHeldTimeouts = 2;
// How long it waits for the topology beyond what opening takes anyway: a survey of some racks.
// Workers wait for half a minute.
inline constexpr DurationNs kSurveyPatience = 24 * kSecond;

// Opens jobs that span racks (racks/rack_opening.h).
class JobOpener {
 public:
  virtual ~JobOpener() = default;
  // This rack opens them itself, at once: it is rack 0 and knows the topology.
  virtual bool OpensAtOnce() const = 0;
  virtual absl::StatusOr<Job*> Open(const v1::JoinRequest& request,
                                    const JobSettings& settings) = 0;
  // Otherwise the rank is answered once rack 0 has opened the job, or not in time.
  virtual void AskToOpen(const v1::JoinRequest& request, std::string_view peer_address,
                         const JobSettings& settings, Answer<v1::JoinResponse> answer) = 0;
};

// Lanes that come from other racks (racks/peer_lanes.h).
class PeerLaneAdmission {
 public:
  virtual ~PeerLaneAdmission() = default;
  // Uses up the nonce.
  virtual wire::LaneRefusal Check(const wire::LaneHello& hello, bool encrypted) = 0;
  // The lane's nonce, if one is good now. None is used up.
  virtual std::optional<wire::Nonce> FindNonce(const wire::LaneHello& hello) = 0;
  virtual void Attach(const wire::LaneHello& hello,
                      std::unique_ptr<transport::Connection> connection,
                      std::uint8_t transport_index, std::string description) = 0;
};

}  // namespace phub::server
