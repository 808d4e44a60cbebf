// Handles barriers. Only one daemon of the rack, the anchor, does so. A barrier completes when
// every rank of the job waits in it. After a rank has left, no barrier can complete. Owned by
// Control; under control's lock.
#pragma once

#include <optional>
#include <string>

#include "server/control/context.h"
#include "server/control/jobs/peer_racks.h"
#include "server/control/jobs/sessions.h"
#include "server/control/ranks/local_rack.h"

namespace phub::server {

class Barriers {
 public:
  Barriers(Context& context, Sessions& sessions, LocalRack& local_rack, PeerRacks& peer_racks)
      : context_(context), sessions_(sessions), local_rack_(local_rack), peer_racks_(peer_racks) {}

  void Barrier(const v1::BarrierRequest& request, Answer<v1::BarrierResponse> answer);
  // Completes the barriers that every rank of every rack has reached.
  void CompleteBarriers(Job& job);
  // Refuses all pending barriers, because the rank described by `departed` has left and can never
  // reach them.
  void RefuseBarriersWithout(Job& job, const std::string& departed);
  // The first incomplete barrier, if a rank of this rack waits in it. O(ranks).
  static std::optional<v1::StalledBarrier> Describe(const Job& job, TimeNs now);

 private:
  Context& context_;
  Sessions& sessions_;
  LocalRack& local_rack_;
  PeerRacks& peer_racks_;
};

}  // namespace phub::server
