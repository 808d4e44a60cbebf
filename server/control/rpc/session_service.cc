// phub.v1.Session: what workers say.
#include "phub/v1/session.grpc.pb.h"
#include "server/control/checkpoint/loads.h"
#include "server/control/checkpoint/versions.h"
#include "server/control/keys/keys.h"
#include "server/control/lanes/lanes.h"
#include "server/control/ranks/barriers.h"
#include "server/control/ranks/joins.h"
#include "server/control/ranks/local_rack.h"
#include "server/control/ranks/seats.h"
#include "server/control/rpc/load_stream.h"
#include "server/control/rpc/unary_call.h"

namespace phub::server {
namespace {

class SessionService final : public v1::Session::CallbackService {
 public:
  explicit SessionService(Shared& shared) : shared_(shared) {}

  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context,
                                 const v1::JoinRequest* request,
                                 v1::JoinResponse* response) override {
    const std::string peer = PeerAddress(*context);
    return Serve(shared_, context, "phub.v1.Session/Join", request, response,
                 [&](Control& control, const Caller&, const v1::JoinRequest& scoped,
                     Answer<v1::JoinResponse> answer) {
                   control.joins().Join(scoped, peer, std::move(answer));
                 });
  }

  PHUB_UNARY(local_rack, Session, GetRack, Rack)
  PHUB_UNARY(seats, Session, Commit, CommitResponse)
  PHUB_UNARY(keys, Session, AddKeys, AddKeysResponse)
  PHUB_UNARY(lanes, Session, OpenLanes, OpenLanesResponse)
  PHUB_UNARY(barriers, Session, Barrier, BarrierResponse)
  PHUB_UNARY(seats, Session, Leave, LeaveResponse)
  PHUB_UNARY(versions, Session, GetVersions, GetVersionsResponse)
  PHUB_UNARY(loads, Session, GetLoadedState, LoadedState)

  grpc::ServerBidiReactor<v1::Heartbeat, v1::SessionEvent>* Attend(
      grpc::CallbackServerContext* context) override {
    const Admission admission = shared_.access.Admit(*context, "phub.v1.Session/Attend");
    // Deletes itself in OnDone.
    auto* const stream = new AttendStream(shared_.thread, admission.caller);
    shared_.thread.Run([&](Control& control) { shared_.Keep(control, stream, admission); });
    return stream;
  }

  grpc::ServerReadReactor<v1::LoadStateRequest>* LoadState(
      grpc::CallbackServerContext* context, v1::LoadStateResponse* response) override {
    const Admission admission = shared_.access.Admit(*context, "phub.v1.Session/LoadState");
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
  return std::make_unique<SessionService>(shared);
}

}  // namespace phub::server
