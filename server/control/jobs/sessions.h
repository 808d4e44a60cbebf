// Whose session a call comes with. A session is one process's hold of a rank's place, by an id that
// only the process knows. Owned by Control; under control's lock.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/control/context.h"
#include "server/control/jobs/job.h"

namespace phub::server {

class Sessions {
 public:
  explicit Sessions(Context& context) : context_(context) {}

  // Draws an id, which is the member's from now on.
  void Open(Job& job, Rank rank);
  void Forget(const std::string& session_id) { sessions_.erase(session_id); }
  void ForgetSessions(const Member& member);  // its former ones, too

  // Null: not known.
  const Seating* Find(std::string_view session_id) const;
  // NOT_FOUND: not known. ABORTED: another process has taken over the rank.
  absl::StatusOr<Seating> FindSession(std::string_view session_id);
  // The same, of a job that has not failed and a rank that has not left, which is heard of by this.
  absl::StatusOr<Seating> FindRunning(std::string_view session_id);
  // The same, of a rank that has committed its place.
  absl::StatusOr<Seating> FindCommitted(std::string_view session_id);
  // What a process is answered whose rank another one has.
  absl::Status TakenOver(const Job& job, Rank rank) const;

 private:
  Context& context_;
  std::map<std::string, Seating, std::less<>> sessions_;  // by id; of jobs that have ended, too
};

}  // namespace phub::server
