#include "server/control/rpc/front_gate.h"

#include <utility>

#include "common/base/status_text.h"
#include "common/net/host_port.h"
#include "server/control/ranks/liveness.h"
#include "server/front/front_limits.h"

namespace phub::server {
namespace {

void AddReport(FrontCounts& to, const FrontCounts& from) {
  to.report.Add(from.report);
  to.restarts += from.restarts;
  to.certificates_refused += from.certificates_refused;
}

void CountAll(Control& control, const FrontCounts& counts) {
  control.counters().Add(ControlCounter::connections_refused_form, counts.report.form);
  control.counters().Add(ControlCounter::connections_refused_crowd, counts.report.crowd);
  control.counters().Add(ControlCounter::connections_refused_late, counts.report.late);
  control.counters().Add(ControlCounter::connections_refused_flood, counts.report.flood);
  control.counters().Add(ControlCounter::connections_refused_memory, counts.report.memory);
  control.counters().Add(ControlCounter::calls_unfinished, counts.report.unfinished);
  control.counters().Add(ControlCounter::requests_refused_form, counts.report.calls);
  control.counters().Add(ControlCounter::front_restarts, counts.restarts);
  control.counters().Add(ControlCounter::certificates_refused, counts.certificates_refused);
}

}  // namespace

absl::StatusOr<std::unique_ptr<FrontGate>> FrontGate::Start(std::vector<Descriptor> listening,
                                                            const FrontSupervisor::Options& options,
                                                            Shared& shared, HandOver hand_over) {
  std::unique_ptr<FrontGate> gate(new FrontGate(shared, std::move(hand_over)));
  if (absl::Status status = gate->notes_.started(); !status.ok()) return status;
  auto started = FrontSupervisor::Start(std::move(listening), options, *gate);
  if (!started.ok()) return started.status();
  gate->front_ = *std::move(started);
  return gate;
}

FrontGate::~FrontGate() { Stop(); }

void FrontGate::Stop() {
  if (front_ != nullptr) front_->Stop();
  notes_.Finish();
}

Admission FrontGate::AdmissionOf(const FrontCall& call) const {
  Credentials credentials;
  credentials.peer = call.peer;
  if (call.certificate) {
    credentials.certificate = CertificateFacts{call.uris, call.certificate_end * kSecond};
  }
  credentials.authorization.assign(call.authorization.begin(), call.authorization.end());
  return shared_.access.Admit(credentials, std::string_view(call.path).substr(1));
}

FrontVerdict FrontGate::Judge(const FrontCall& call, Descriptor& upstream) {
  FrontVerdict verdict;
  verdict.connection = call.connection;
  const auto refuse = [&](const absl::Status& status) {
    verdict.code = static_cast<std::uint32_t>(status.code());
    verdict.message = MessageOf(status);
    return verdict;
  };
  if (!call.path.starts_with('/')) return refuse(absl::UnimplementedError(""));
  const auto refuse_and_count = [&](const Admission& admission) {
    notes_.Post([this, admission] {
      shared_.thread.Run([&](Control& control) { shared_.NoteRefusal(control, admission); });
    });
    return refuse(admission.status);
  };
  Upstream made;
  made.place.block = net::AddressBlock(call.peer);
  Admission admission;
  if (shared_.access.identities()) {
    admission = AdmissionOf(call);
    if (admission.rule == nullptr) return refuse(absl::UnimplementedError(""));
    // An identified caller passes, even if it may not make this call: gRPC's side refuses that.
    if (absl::IsUnauthenticated(admission.status)) return refuse_and_count(admission);
    auto charged = shared_.Charge(admission.caller, kConnectionBytes);
    if (!charged.ok()) {
      admission.status = charged.status();
      admission.refused = ControlCounter::connections_refused_quota;
      return refuse_and_count(admission);
    }
    made.charge = *std::move(charged);
    if (!admission.caller.open && admission.caller.role == Role::kTenant)
      made.place.tenant = admission.caller.tenant;
  }
  const TenantPlaces::Answer place = places_.Take(made.place);
  if (place.refusal.has_value()) {
    admission.status = place.refusal->status;
    admission.refused = place.refusal->crowd ? ControlCounter::connections_refused_crowd
                                             : ControlCounter::connections_refused_quota;
    return refuse_and_count(admission);
  }
  verdict.tenant = made.place.tenant;
  // Also if the newcomer is refused below: the front has more descriptors then.
  if (place.displaced.has_value()) {
    verdict.displaces = true;
    verdict.displaced_tenant = place.displaced->tenant;
    verdict.displaced_block = place.displaced->block;
  }
  UpstreamPeer peer{.peer = call.peer, .certificate = {}};
  if (call.certificate) {
    peer.certificate = CertificateFacts{call.uris, call.certificate_end * kSecond};
  }
  auto pair = shared_.access.peers().MakeUpstream(peer);
  if (!pair.has_value()) {
    places_.Return(made.place);
    return refuse(absl::UnavailableError("phubd is out of descriptors; try again later"));
  }
  made.name = pair->name;
  upstreams_[call.connection] = std::move(made);
  upstream = std::move(pair->front);
  hand_over_(std::move(pair->grpc));
  return verdict;
}

void FrontGate::OnGone(std::uint64_t connection) {
  const auto found = upstreams_.find(connection);
  if (found == upstreams_.end()) return;
  shared_.access.peers().RemoveUpstream(found->second.name);
  places_.Return(found->second.place);
  upstreams_.erase(found);
}

void FrontGate::OnAllGone() {
  for (const auto& [connection, upstream] : upstreams_) {
    shared_.access.peers().RemoveUpstream(upstream.name);
    places_.Return(upstream.place);
  }
  upstreams_.clear();
}

void FrontGate::OnCounts(const FrontCounts& counts) {
  AddReport(uncounted_, counts);
  const bool posted = notes_.Post([this, all = uncounted_] {
    shared_.thread.Run([&](Control& control) { CountAll(control, all); });
  });
  if (posted) uncounted_ = {};
}

bool FrontGate::OnOutage(TimeNs since) {
  return notes_.Post([this, since] {
    shared_.thread.Run([&](Control& control) { control.liveness().NoteOutage(since); });
  });
}

bool FrontGate::Alive() {
  const TimeNs now = clock_.Now();
  if (asked_ == 0) answered_ = now;
  asked_ = now;
  if (!asking_.exchange(true) && !notes_.Post([this] {
        shared_.thread.Run([](Control&) {});
        answered_ = clock_.Now();
        asking_ = false;
      })) {
    asking_ = false;
  }
  return now - answered_ < kServerSilenceMax;
}

}  // namespace phub::server
