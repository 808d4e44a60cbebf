// Lanes between core loops of different racks. Only racks that share an edge of the job's plan have
// them. The rack with the lower number grants the lanes and the other one dials them: over a
// transport that both offer (peer_offers.h), otherwise over tcp. Owned by Control; under control's
// lock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/wire/lane_hello.h"
#include "phub/v1/peer.pb.h"
#include "server/control/context.h"
#include "server/control/jobs/peer_racks.h"
#include "server/control/racks/known_racks.h"
#include "server/control/racks/peer_network.h"
#include "server/control/racks/peer_offers.h"
#include "server/control/racks/rack_run.h"

namespace phub::server {

class Ending;
class JobTable;
class RackMessages;
class RackOpening;

class PeerLanes final : public PeerLaneAdmission {
 public:
  PeerLanes(Context& context, KnownRacks& known, Ending& ending, JobTable& jobs,
            RackMessages& messages, RackOpening& opening)
      : context_(context),
        known_(known),
        ending_(ending),
        jobs_(jobs),
        messages_(messages),
        opening_(opening) {}

  // To be called before the first Join or envelope. The network must outlive every job.
  void SetPeerNetwork(PeerNetwork& network) { network_ = &network; }

  wire::LaneRefusal Check(const wire::LaneHello& hello, bool encrypted) override;
  std::optional<wire::Nonce> FindNonce(const wire::LaneHello& hello) override;
  void Attach(const wire::LaneHello& hello, std::unique_ptr<transport::Connection> connection,
              std::uint8_t transport_index, std::string description) override;

  // For PeerNetwork::DialLane: whether the lane is still needed, and the result of the dial.
  bool LacksPeerLane(const wire::LaneHello& hello, RackIndex to) const;
  void AttachPeerLane(const wire::LaneHello& hello, RackIndex to,
                      std::unique_ptr<transport::Connection> connection,
                      std::uint8_t transport_index, std::string description);
  void PeerLaneFailed(const wire::LaneHello& hello, RackIndex to, const absl::Status& why);

  // Called once every rack has the job: grants nonces to the racks that the steps name.
  void GrantPeerLanes(Job& job, const RackSteps& steps);
  // Dials the lanes that another rack granted.
  void HandleConnect(Job& job, RackIndex from, const v1::PeerConnect& connect);
  // Whether every lane of this rack was given to its core loop. Core loops execute commands in
  // order, so nothing that a worker does later can overtake the attachment.
  bool HasAllLanes(const RackRun& run) const;

  void HandlePeerLaneClosed(Job& job, CoreIndex core, const Event& event);
  void FailOverPeerFault(Job& job, CoreIndex core, const Event& event);

 private:
  // What of the peer's offers this daemon can use for the job.
  PeerOffers OffersOf(const Job& job, RackIndex from, const v1::PeerConnect& connect) const;
  PeerLanePlace* FindGrantedPeer(const wire::LaneHello& hello, wire::LaneRefusal& refusal);

  Context& context_;
  KnownRacks& known_;
  Ending& ending_;
  JobTable& jobs_;
  RackMessages& messages_;
  RackOpening& opening_;
  PeerNetwork* network_ = nullptr;
};

}  // namespace phub::server
