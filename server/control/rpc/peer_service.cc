// phub.v1.Peer: what the daemons of other racks say.
#include "phub/v1/peer.grpc.pb.h"
#include "server/control/racks/rack_messages.h"
#include "server/control/rpc/service.h"

namespace phub::server {
namespace {

class PeerService final : public v1::Peer::CallbackService {
 public:
  explicit PeerService(Shared& shared) : shared_(shared) {}

  grpc::ServerUnaryReactor* Exchange(grpc::CallbackServerContext* context,
                                     const v1::PeerEnvelope* request,
                                     v1::PeerReceipt* response) override {
    return Serve(shared_, context, "phub.v1.Peer/Exchange", request, response,
                 [](Control& control, const Caller&, const v1::PeerEnvelope& envelope,
                    Answer<v1::PeerReceipt> answer) {
                   control.rack_messages().OnEnvelope(envelope, std::move(answer));
                 });
  }

 private:
  Shared& shared_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakePeerService(Shared& shared) {
  return std::make_unique<PeerService>(shared);
}

}  // namespace phub::server
