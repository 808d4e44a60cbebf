// phub.v1.Probe: what operators ask about the ways between racks, and what the racks' daemons ask
// each other for it.
#include <fmt/format.h>

#include "common/base/log.h"
#include "phub/v1/probe.grpc.pb.h"
#include "server/control/prober.h"
#include "server/control/service.h"

namespace phub::server {
namespace {

class ProbeService final : public v1::Probe::CallbackService {
 public:
  ProbeService(Shared& shared, Prober* prober) : shared_(shared), prober_(prober) {}

  grpc::ServerUnaryReactor* GetRacks(grpc::CallbackServerContext* context,
                                     const v1::GetRacksRequest* request,
                                     v1::RacksInfo* response) override {
    return ServeByProber(
        context, "phub.v1.Probe/GetRacks", request, response,
        [](Prober& prober, Control& control, const Caller&, const v1::GetRacksRequest&,
           const Answer<v1::RacksInfo>& answer) { prober.GetRacks(control, answer); });
  }

  grpc::ServerUnaryReactor* ProbePair(grpc::CallbackServerContext* context,
                                      const v1::ProbePairRequest* request,
                                      v1::ProbePairResponse* response) override {
    return ServeByProber(
        context, "phub.v1.Probe/ProbePair", request, response,
        [](Prober& prober, Control& control, const Caller& caller,
           const v1::ProbePairRequest& asked, Answer<v1::ProbePairResponse> answer) {
          LogInfo("event=probe_asked from_rack={} to_rack={} by=\"{}\" peer={}", asked.from_rack(),
                  asked.to_rack(), caller.name, caller.peer);
          prober.ProbePair(control, asked, std::move(answer));
        });
  }

  grpc::ServerUnaryReactor* RelayProbe(grpc::CallbackServerContext* context,
                                       const v1::PeerProbeRequest* request,
                                       v1::ProbePairResponse* response) override {
    return ServeByProber(
        context, "phub.v1.Probe/RelayProbe", request, response,
        [](Prober& prober, Control& control, const Caller&, const v1::PeerProbeRequest& asked,
           Answer<v1::ProbePairResponse> answer) {
          prober.RelayProbe(control, asked, std::move(answer));
        });
  }

  grpc::ServerUnaryReactor* GrantProbe(grpc::CallbackServerContext* context,
                                       const v1::PeerProbeRequest* request,
                                       v1::ProbeGrant* response) override {
    return ServeByProber(
        context, "phub.v1.Probe/GrantProbe", request, response,
        [](Prober& prober, Control& control, const Caller&, const v1::PeerProbeRequest& asked,
           const Answer<v1::ProbeGrant>& answer) { prober.GrantProbe(control, asked, answer); });
  }

 private:
  template <typename Request, typename Response, typename Function>
  grpc::ServerUnaryReactor* ServeByProber(grpc::CallbackServerContext* context,
                                          std::string_view method, const Request* request,
                                          Response* response, Function function) {
    return Serve(shared_, context, method, request, response,
                 [this, function](Control& control, const Caller& caller, const Request& asked,
                                  Answer<Response> answer) {
                   if (prober_ == nullptr) {
                     return answer(absl::FailedPreconditionError(
                                       "this daemon has no other racks: its `racks` is empty"),
                                   {});
                   }
                   function(*prober_, control, caller, asked, std::move(answer));
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
