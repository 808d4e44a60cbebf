// phub.v1.Probe: operators' queries about the network between racks, and the calls that the racks'
// daemons make to each other for them.
#include <fmt/format.h>

#include "common/base/log.h"
#include "phub/v1/probe.pb.h"
#include "server/control/rpc/grpc_service.h"
#include "server/control/rpc/prober.h"

namespace phub::server {
namespace {

absl::Status NoRacks() {
  return absl::FailedPreconditionError("this daemon has no other racks: its `racks` is empty");
}

class ProbeHandlers {
 public:
  ProbeHandlers(Shared& shared, Prober* prober) : shared_(shared), prober_(prober) {}

  void Handle(RpcCall<rpc::GetRacks>& call) { Ask(call, &Prober::GetRacks); }
  void Handle(RpcCall<rpc::ProbePair>& call) { Ask(call, &Prober::ProbePair); }
  void Handle(RpcCall<rpc::RelayProbe>& call) { Ask(call, &Prober::RelayProbe); }
  void Handle(RpcCall<rpc::GrantProbe>& call) { Ask(call, &Prober::GrantProbe); }

  void Handle(RpcCall<rpc::ApplyTopology>& call) {
    const Caller& caller = call.caller;
    const v1::ApplyTopologyRequest& asked = call.request;
    if (prober_ == nullptr) return call.answer(NoRacks(), {});
    LogInfo("event=topology_asked by=\"{}\" peer={} bytes={}", caller.name, caller.peer,
            asked.topology().size());
    const auto apply = [prober = prober_](Control& under_lock,
                                          const v1::ApplyTopologyRequest& wanted,
                                          Answer<v1::RacksInfo> then) {
      prober->ApplyTopology(under_lock, wanted, std::move(then));
    };
    // Recorded only at the daemon that the operator called; only daemons forward the call.
    if (asked.passed_on() && (caller.open || caller.role == Role::kServer))
      return apply(call.control, asked, std::move(call.answer));
    RunAudited(shared_, call.control, caller,
               {caller.name, caller.peer, "racks.topology", "racks",
                fmt::format("{} bytes", asked.topology().size()), "asked"},
               asked, std::move(call.answer), apply);
  }

 private:
  template <typename Rpc>
  void Ask(RpcCall<Rpc>& call, void (Prober::*method)(Control&, const typename Rpc::Request&,
                                                      Answer<typename Rpc::Response>)) {
    if (prober_ == nullptr) return call.answer(NoRacks(), {});
    LogInfo("event=probe_asked method={} by=\"{}\" peer={}", Rpc::kMethod, call.caller.name,
            call.caller.peer);
    (prober_->*method)(call.control, call.request, std::move(call.answer));
  }

  Shared& shared_;
  Prober* const prober_;  // null: there are no other racks
};

}  // namespace

std::unique_ptr<grpc::Service> MakeProbeService(Shared& shared, Prober* prober) {
  return std::make_unique<GrpcService<ProbeHandlers, rpc::Probe>>(shared, prober);
}

}  // namespace phub::server
