// Who is heard of: event streams (Attend), heartbeats, and what happens to ranks that fall silent
// and to jobs that nobody is in. Owned by Control; under control's lock.
#pragma once

#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/control/context.h"
#include "server/control/jobs/peer_racks.h"
#include "server/control/jobs/presence.h"
#include "server/control/jobs/sessions.h"

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
        peer_racks_(peer_racks) {}

  // Attend: one stream per session; a newer one ends the older. A failed job's fault is sent again
  // at once, so that a client that reconnects learns it.
  absl::StatusOr<StreamId> AttachStream(std::string_view session_id,
                                        std::shared_ptr<EventSink> sink);
  // Answers through the stream, if the session has one.
  absl::Status Heartbeat(std::string_view session_id, std::uint64_t sequence);
  // The stream broke or was closed; ignored if it is no longer the session's.
  void DetachStream(std::string_view session_id, StreamId stream);

  void CheckLiveness(TimeNs now);
  void CheckAbandoned(Job& job, TimeNs now);
  // Time in which control itself could not listen is given back to the workers, with some for
  // heartbeats that are not read yet; a few times in a row: a host that is always late notices the
  // dead.
  void ForgiveSilence(DurationNs duration);

 private:
  Context& context_;
  JobTable& jobs_;
  Sessions& sessions_;
  Ending& ending_;
  Diagnoses& diagnoses_;
  Presence& presence_;
  PeerRacks& peer_racks_;
  StreamId streams_made_ = 0;
};

}  // namespace phub::server
