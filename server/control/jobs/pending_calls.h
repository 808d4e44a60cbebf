// Calls that are answered once core loops, other racks, devices and the system's memory have what
// they ask for. Owned by Control; under control's lock.
#pragma once

#include "server/control/context.h"
#include "server/control/jobs/ending.h"
#include "server/control/jobs/peer_racks.h"

namespace phub::server {

class PendingCalls {
 public:
  PendingCalls(Context& context, Ending& ending, PeerRacks& peer_racks)
      : context_(context), ending_(ending), peer_racks_(peer_racks) {}

  // Answers those of the job whose time has come. Ends the job when every rank has left and none
  // waits.
  void AnswerAcknowledged(Job& job);
  // Every core loop has the first `batches` of the job's keys.
  bool KeysAcknowledged(const Job& job, std::size_t batches) const;

 private:
  Context& context_;
  Ending& ending_;
  PeerRacks& peer_racks_;
};

}  // namespace phub::server
