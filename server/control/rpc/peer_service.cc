// phub.v1.Peer: messages from the daemons of other racks.
#include <utility>

#include "phub/v1/peer.pb.h"
#include "server/control/racks/rack_messages.h"
#include "server/control/rpc/grpc_service.h"

namespace phub::server {
namespace {

struct PeerHandlers {
  explicit PeerHandlers(Shared&) {}

  static void Handle(RpcCall<rpc::Exchange>& call) {
    call.control.rack_messages().OnOwnedEnvelope(call.owned, std::move(call.answer));
  }
};

}  // namespace

std::unique_ptr<grpc::Service> MakePeerService(Shared& shared) {
  return std::make_unique<GrpcService<PeerHandlers, rpc::Peer>>(shared);
}

}  // namespace phub::server
