// Joins that wait, for a bounded time, until processes of ended jobs have unmapped the memory that
// the new job needs. Without that, a job that is started right after another one would be refused,
// because processes take a moment to exit. Bounded. Owned by Control; under control's lock.
#pragma once

#include <cstdint>
#include <list>
#include <string>

#include "common/base/clock.h"
#include "phub/v1/session.pb.h"
#include "server/control/answers.h"

namespace phub::server {

class WaitingJoins {
 public:
  struct Waiting {
    v1::JoinRequest request;
    std::string peer_address;
    Answer<v1::JoinResponse> answer;
    TimeNs deadline = 0;
  };

  // `bytes_left`: see Ledger::left_bytes(). False if there is no room.
  [[nodiscard]] bool Add(Waiting join, std::uint64_t bytes_left);
  // All of them if memory was returned since the last look, or the first deadline is over.
  // Otherwise none.
  std::list<Waiting> Take(TimeNs now, std::uint64_t bytes_left);
  TimeNs FirstDeadline() const;  // kNever if none waits

 private:
  std::list<Waiting> joins_;
  std::uint64_t bytes_left_ = 0;  // at the last look
};

}  // namespace phub::server
