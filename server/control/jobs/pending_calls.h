// Answers calls when everything that they wait for is done: commands to core loops, keys in other
// racks, registration with devices, and prefaulted pages. Owned by Control; under control's lock.
#pragma once

#include "server/control/context.h"
#include "server/control/jobs/ending.h"
#include "server/control/jobs/peer_racks.h"

namespace phub::server {

class PendingCalls {
 public:
  PendingCalls(Context& context, Ending& ending, PeerRacks& peer_racks, GroupRacks& group_racks)
      : context_(context), ending_(ending), peer_racks_(peer_racks), group_racks_(group_racks) {}

  // Answers the calls of the job that are ready. Ends the job when every rank has left and no call
  // is pending.
  void AnswerAcknowledged(Job& job);
  // Whether every core loop has the first `batches` batches of the job's keys, and gives none up.
  bool KeysAcknowledged(const Job& job, std::size_t batches) const;

 private:
  bool HasGroupBatch(const Job& job, const PendingCall& call) const;

  Context& context_;
  Ending& ending_;
  PeerRacks& peer_racks_;
  GroupRacks& group_racks_;
};

}  // namespace phub::server
