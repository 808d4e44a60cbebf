// Finds the rank of a session. A session lets one process act as a rank of a job. Its id is known
// only to that process. Owned by Control; under control's lock.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/control/context.h"
#include "server/control/jobs/job.h"

namespace phub::server {

class JobTable;

class Sessions {
 public:
  explicit Sessions(Context& context) : context_(context) {}

  // Draws a new session id for the member.
  void Open(Job& job, Rank rank);
  void Forget(const std::string& session_id) { sessions_.erase(session_id); }
  void ForgetSessions(const Member& member);  // including its former ones

  // Null if the session is not known.
  const Seating* Find(std::string_view session_id) const;
  // NOT_FOUND if the session is not known, ABORTED if another process has taken over the rank.
  absl::StatusOr<Seating> FindSession(std::string_view session_id);
  // The same, but also fails if the job has failed or the rank has left. Counts as a heartbeat.
  absl::StatusOr<Seating> FindRunning(std::string_view session_id);
  // The same, but also fails if the rank has not committed its place.
  absl::StatusOr<Seating> FindCommitted(std::string_view session_id);
  // The answer to a process whose rank was taken over.
  absl::Status TakenOver(const Job& job, Rank rank) const;

  // Aborts if N1 or N2 of docs/internals/invariants.md is broken.
  void CheckInvariants(const JobTable& jobs) const;

 private:
  Context& context_;
  std::map<std::string, Seating, std::less<>> sessions_;  // by id; including ended jobs
};

}  // namespace phub::server
