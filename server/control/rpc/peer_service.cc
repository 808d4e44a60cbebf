// phub.v1.Peer: messages from the daemons of other racks.
#include "phub/v1/peer.pb.h"
#include "server/control/rpc/grpc_service.h"

namespace phub::server {
namespace {

// Control handles all of them (control_methods.h).
struct PeerHandlers {
  explicit PeerHandlers(Shared&) {}
};

}  // namespace

std::unique_ptr<grpc::Service> MakePeerService(Shared& shared) {
  return std::make_unique<GrpcService<PeerHandlers, rpc::Peer>>(shared);
}

}  // namespace phub::server
