// Tracks the liveness of ranks: event streams (Attend), heartbeats, ranks that fall silent, and
// jobs without ranks. Ranks with lanes are judged by these (lane_liveness.h), others by heartbeats.
// Owned by Control; under control's lock.
#pragma once

#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/control/context.h"
#include "server/control/jobs/peer_racks.h"
#include "server/control/jobs/presence.h"
#include "server/control/jobs/sessions.h"
#include "server/control/ranks/lane_liveness.h"

namespace phub::server {

class Liveness {
 public:
  Liveness(Context& context, JobTable& jobs, Sessions& sessions, Ending& ending,
           Diagnoses& diagnoses, Presence& presence, PeerRacks& peer_racks)
      : context_(context),
        jobs_(jobs),
        sessions_(sessions),
        ending_(ending),
        diagnoses_(diagnoses),
        presence_(presence),
        peer_racks_(peer_racks),
        lanes_(context, jobs, diagnoses, presence) {}

  // Attend: each session has one stream; a newer one ends the older one. If the job has failed, its
  // fault is sent again at once, so that a client that reconnects learns the reason.
  absl::StatusOr<StreamId> AttachStream(std::string_view session_id,
                                        std::shared_ptr<EventSink> sink);
  // Records a heartbeat and answers it on the stream of the session, if it has one.
  absl::Status Heartbeat(std::string_view session_id, std::uint64_t sequence);
  // The stream broke or was closed. It means nothing: the process attends again, or its lanes and
  // heartbeats show that it is gone. Ignored if the session has a newer stream.
  void DetachStream(std::string_view session_id, StreamId stream);

  void CheckLiveness(TimeNs now);
  // When to look again at ranks that are judged by their lanes.
  TimeNs next_look() const { return lanes_.next(); }
  void CheckAbandoned(Job& job, TimeNs now);
  // Extends the liveness deadlines by the time in which control could not read heartbeats.
  // Heartbeats may still be unread, so a rank then has at least half of liveness_timeout left. A
  // rank gets only a few extensions without a heartbeat, so that a host that is always late still
  // detects dead ranks.
  void ForgiveSilence(DurationNs duration);
  // The control port cannot be reached since then (0: it can again), so lost ranks cannot return.
  void NoteOutage(TimeNs since);

 private:
  Context& context_;
  JobTable& jobs_;
  Sessions& sessions_;
  Ending& ending_;
  Diagnoses& diagnoses_;
  Presence& presence_;
  PeerRacks& peer_racks_;
  LaneLiveness lanes_;
  StreamId streams_made_ = 0;
};

}  // namespace phub::server
