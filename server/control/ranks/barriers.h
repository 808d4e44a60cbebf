// Barriers: held by one daemon of the rack, the anchor. A barrier completes when every rank of the
// job is in it, and never once a rank has left. Owned by Control; under control's lock.
#pragma once

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
  // Completes those that every rank, here and in other racks, is in.
  void CompleteBarriers(Job& job);
  // Answers all who wait: a rank that left never comes. `departed`: which, for people.
  void RefuseBarriersWithout(Job& job, const std::string& departed);

 private:
  Context& context_;
  Sessions& sessions_;
  LocalRack& local_rack_;
  PeerRacks& peer_racks_;
};

}  // namespace phub::server
