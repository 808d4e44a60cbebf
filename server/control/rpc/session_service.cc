// phub.v1.Session: calls of workers.
#include "phub/v1/session.pb.h"
#include "server/control/ranks/joins.h"
#include "server/control/rpc/grpc_service.h"
#include "server/control/rpc/load_stream.h"

namespace phub::server {
namespace {

class SessionHandlers {
 public:
  explicit SessionHandlers(Shared& shared) : shared_(shared) {}

  void Handle(RpcCall<rpc::Join>& call) {
    call.control.joins().Join(call.request, shared_.access.PeerAddress(*call.context),
                              std::move(call.answer));
  }

  void Handle(RpcCall<rpc::AddKeys>& call) {
    call.control.keys().AddOwnedKeys(std::move(call.owned), std::move(call.answer));
  }

  grpc::ServerBidiReactor<Received<v1::Heartbeat>, v1::SessionEvent>* Open(
      rpc::Attend, grpc::CallbackServerContext* context) {
    Admission admission = shared_.access.Admit(*context, rpc::Attend::kMethod);
    // Deletes itself in OnDone.
    auto* const stream = new AttendStream(shared_.thread, admission.caller);
    shared_.thread.Run([&](Control& control) { shared_.Keep(control, stream, admission); });
    return stream;
  }

  grpc::ServerReadReactor<Received<v1::LoadStateRequest>>* Open(
      rpc::LoadState, grpc::CallbackServerContext* context, v1::LoadStateResponse* response) {
    Admission admission = shared_.access.Admit(*context, rpc::LoadState::kMethod);
    // Deletes itself in OnDone.
    auto* const stream = new LoadStream(shared_.thread, admission.caller, shared_.relay, response);
    shared_.thread.Run([&](Control& control) { shared_.Keep(control, stream, admission); });
    return stream;
  }

 private:
  Shared& shared_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeSessionService(Shared& shared) {
  return std::make_unique<GrpcService<SessionHandlers, rpc::Session>>(shared);
}

}  // namespace phub::server
