// Manages the lanes between workers and core loops: grants nonces to open them, admits and tracks
// them. A listener calls AdmitLane before it accepts a connection and AttachLane afterwards. Owned
// by Control; under control's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/transport/transport.h"
#include "common/wire/lane_hello.h"
#include "server/control/context.h"
#include "server/control/jobs/job_table.h"
#include "server/control/jobs/peer_racks.h"
#include "server/control/jobs/presence.h"
#include "server/control/jobs/sessions.h"
#include "server/control/lanes/rank_memories.h"
#include "server/control/lanes/sum_streams.h"

namespace phub::server {

class Lanes {
 public:
  Lanes(Context& context, JobTable& jobs, Sessions& sessions, Presence& presence,
        RankMemories& rank_memories, PeerLaneAdmission& peer_lanes, const SumStreams& sums)
      : context_(context),
        jobs_(jobs),
        sessions_(sessions),
        presence_(presence),
        rank_memories_(rank_memories),
        peer_lanes_(peer_lanes),
        sums_(sums) {}

  // Grants a nonce for each lane that the rank wants to open.
  void OpenLanes(const v1::OpenLanesRequest& request, Answer<v1::OpenLanesResponse> answer);

  // Checks a hello and uses up its nonce. The listener has checked the protocol version. `process`
  // is the client process of a lane over shared memory. `encrypted`: the lane uses TLS.
  wire::LaneRefusal AdmitLane(const wire::LaneHello& hello,
                              std::optional<PeerProcess> process = std::nullopt,
                              bool encrypted = false);
  // Whether to write a line about a refusal at the data port. `peer`: an address block, or a user.
  bool MayLogRefusalOf(std::string_view peer) { return context_.log.MayLogLaneRefusal(peer); }
  // The valid nonce of the lane that the hello requests, if there is one. Ignores the nonce in the
  // hello, and does not use up the nonce.
  std::optional<wire::Nonce> FindNonce(const wire::LaneHello& hello);
  // Attaches the lane to its core loop, and keeps the connection until the core loop reports
  // kLaneClosed. Destroys the connection if the lane has no place any more, for example because the
  // job has ended. REQUIRES: AdmitLane returned kNone.
  void AttachLane(const wire::LaneHello& hello, std::unique_ptr<transport::Connection> connection,
                  std::uint8_t transport_index, std::string_view transport_name,
                  std::string_view peer_address);

  void HandleLaneClosed(Job& job, CoreIndex core, const Event& event);

 private:
  // The place that the hello requests, if it has a valid nonce. Otherwise null, and sets `refusal`.
  LanePlace* FindGranted(const wire::LaneHello& hello, wire::LaneRefusal& refusal);
  wire::LaneRefusal CheckLane(const wire::LaneHello& hello, std::optional<PeerProcess> process,
                              bool encrypted);
  void AttachWorker(const wire::LaneHello& hello, std::unique_ptr<transport::Connection> connection,
                    std::uint8_t transport_index, std::string description);

  Context& context_;
  JobTable& jobs_;
  Sessions& sessions_;
  Presence& presence_;
  RankMemories& rank_memories_;
  PeerLaneAdmission& peer_lanes_;
  const SumStreams& sums_;
};

}  // namespace phub::server
