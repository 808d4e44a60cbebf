// Operators' queries and commands about all racks: the list of racks, and the topology for which
// new jobs are planned. Rack 0, which plans and opens jobs, answers those about a measured
// topology.
#include <fmt/format.h>

#include <utility>

#include "common/plan/topology_json.h"
#include "phub/v1/probe.grpc.pb.h"
#include "server/control/racks/rack_messages.h"
#include "server/control/racks/topology_survey.h"
#include "server/control/rpc/prober.h"
#include "server/control/rpc/prober_call.h"
#include "server/tenant/tenant.h"

namespace phub::server {
namespace {

constexpr int kRelaysMax = 64;
constexpr DurationNs kRack0Timeout = 5 * kSecond;

}  // namespace

absl::Status TooManyRelays() {
  return absl::ResourceExhaustedError(
      fmt::format("{} calls are already waiting for other racks; try again later", kRelaysMax));
}

bool Prober::BeginRelay() {
  const std::lock_guard lock(mutex_);
  if (relays_ >= kRelaysMax) return false;
  ++relays_;
  return true;
}

void Prober::EndRelay() {
  const std::lock_guard lock(mutex_);
  --relays_;
}

template <typename Request, typename Method>
void Prober::AskRack0(Control& control, Request request, Answer<v1::RacksInfo> answer,
                      Method method) {
  if (!BeginRelay()) {
    control.counters().Add(ControlCounter::probes_refused_busy);
    return answer(TooManyRelays(), {});
  }
  request.set_passed_on(true);
  const absl::Status launched = Launch([this, request = std::move(request), answer, method] {
    const auto stub = v1::Probe::NewStub(MakePeerChannel(options_.racks[0], credentials_));
    v1::RacksInfo info;
    grpc::Status status;
    {
      Call call(*this, kRack0Timeout);
      status = ((*stub).*method)(call.context(), request, &info);
    }
    EndRelay();
    info.set_rack(options_.self);
    const absl::Status said = SaidByPeer(Name(0), status);
    control_.Run([&](Control&) { answer(said, info); });
  });
  if (launched.ok()) return;
  EndRelay();
  answer(launched, {});
}

void Prober::GetRacks(Control& control, const v1::GetRacksRequest& request,
                      Answer<v1::RacksInfo> answer) {
  const TopologyState state = control.survey().DescribeTopology();
  if (state.is_measured && options_.self != 0 && !request.passed_on()) {
    return AskRack0(control, request, std::move(answer), &v1::Probe::Stub::GetRacks);
  }
  v1::RacksInfo info;
  for (std::size_t rack = 0; rack < rack_count(); ++rack) info.add_racks(options_.racks[rack]);
  info.set_rack(options_.self);
  const bool stands = state.measured.topology != nullptr;
  info.set_topology(plan::TopologyToJson(stands ? *state.measured.topology : *options_.topology));
  info.set_configuration(
      control.rack_messages().MakeEnvelope(RackIndex{options_.self}).configuration());
  info.set_probed(state.is_measured);
  info.set_measured_unix_ns(state.measured.unix_ns);
  info.set_state(state.state);
  answer(absl::OkStatus(), info);
}

void Prober::ApplyTopology(Control& control, const v1::ApplyTopologyRequest& request,
                           Answer<v1::RacksInfo> answer) {
  const bool is_measured = control.survey().DescribeTopology().is_measured;
  if (is_measured && options_.self != 0 && !request.passed_on()) {
    return AskRack0(control, request, std::move(answer), &v1::Probe::Stub::ApplyTopology);
  }
  const absl::Status status = control.survey().ApplyTopology(request.topology(), WallNow());
  if (!status.ok()) return answer(status, {});
  GetRacks(control, {}, std::move(answer));
}

}  // namespace phub::server
