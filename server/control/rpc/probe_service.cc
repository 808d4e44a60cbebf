// phub.v1.Probe: what operators ask about the ways between racks, and what the racks' daemons ask
// each other for it.
#include <fmt/format.h>

#include "common/base/log.h"
#include "phub/v1/probe.grpc.pb.h"
#include "server/control/rpc/prober.h"
#include "server/control/rpc/service.h"

namespace phub::server {
namespace {

absl::Status NoRacks() {
  return absl::FailedPreconditionError("this daemon has no other racks: its `racks` is empty");
}

class ProbeService final : public v1::Probe::CallbackService {
 public:
  ProbeService(Shared& shared, Prober* prober) : shared_(shared), prober_(prober) {}

  grpc::ServerUnaryReactor* GetRacks(grpc::CallbackServerContext* context,
                                     const v1::GetRacksRequest* request,
                                     v1::RacksInfo* response) override {
    return ServeBy(&Prober::GetRacks, "phub.v1.Probe/GetRacks", context, request, response);
  }

  grpc::ServerUnaryReactor* ApplyTopology(grpc::CallbackServerContext* context,
                                          const v1::ApplyTopologyRequest* request,
                                          v1::RacksInfo* response) override {
    return Serve(shared_, context, "phub.v1.Probe/ApplyTopology", request, response,
                 [this](Control& control, const Caller& caller,
                        const v1::ApplyTopologyRequest& asked, Answer<v1::RacksInfo> answer) {
                   if (prober_ == nullptr) return answer(NoRacks(), {});
                   LogInfo("event=topology_asked by=\"{}\" peer={} bytes={}", caller.name,
                           caller.peer, asked.topology().size());
                   const auto apply = [prober = prober_](Control& under_lock,
                                                         const v1::ApplyTopologyRequest& wanted,
                                                         Answer<v1::RacksInfo> then) {
                     prober->ApplyTopology(under_lock, wanted, std::move(then));
                   };
                   // Where an operator asked it is recorded; only daemons pass it on.
                   if (asked.passed_on() && (caller.open || caller.role == Role::kServer))
                     return apply(control, asked, std::move(answer));
                   RunAudited(shared_, control,
                              {caller.name, caller.peer, "racks.topology", "racks",
                               fmt::format("{} bytes", asked.topology().size()), "asked"},
                              asked, std::move(answer), apply);
                 });
  }

  grpc::ServerUnaryReactor* ProbePair(grpc::CallbackServerContext* context,
                                      const v1::ProbePairRequest* request,
                                      v1::ProbePairResponse* response) override {
    return ServeBy(&Prober::ProbePair, "phub.v1.Probe/ProbePair", context, request, response);
  }

  grpc::ServerUnaryReactor* RelayProbe(grpc::CallbackServerContext* context,
                                       const v1::PeerProbeRequest* request,
                                       v1::ProbePairResponse* response) override {
    return ServeBy(&Prober::RelayProbe, "phub.v1.Probe/RelayProbe", context, request, response);
  }

  grpc::ServerUnaryReactor* GrantProbe(grpc::CallbackServerContext* context,
                                       const v1::PeerProbeRequest* request,
                                       v1::ProbeGrant* response) override {
    return ServeBy(&Prober::GrantProbe, "phub.v1.Probe/GrantProbe", context, request, response);
  }

 private:
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* ServeBy(void (Prober::*call)(Control&, const Request&,
                                                         Answer<Response>),
                                    std::string_view method, grpc::CallbackServerContext* context,
                                    const Request* request, Response* response) {
    return Serve(shared_, context, method, request, response,
                 [prober = prober_, call, method](Control& control, const Caller& caller,
                                                  const Request& asked, Answer<Response> answer) {
                   if (prober == nullptr) return answer(NoRacks(), {});
                   LogInfo("event=probe_asked method={} by=\"{}\" peer={}", method, caller.name,
                           caller.peer);
                   (prober->*call)(control, asked, std::move(answer));
                 });
  }

  Shared& shared_;
  Prober* const prober_;  // null: there are no other racks
};

}  // namespace

std::unique_ptr<grpc::Service> MakeProbeService(Shared& shared, Prober* prober) {
  return std::make_unique<ProbeService>(shared, prober);
}

}  // namespace phub::server
