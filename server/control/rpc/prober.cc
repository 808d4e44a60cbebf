#include "server/control/rpc/prober.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/cpu_topology.h"
#include "common/base/log.h"
#include "common/base/shortage.h"
#include "common/base/status_text.h"
#include "common/transport/tcp/tcp_dial.h"
#include "common/transport/tls/tls_dial.h"
#include "phub/v1/probe.grpc.pb.h"
#include "server/control/racks/rack_messages.h"
#include "server/control/rpc/prober_call.h"

namespace phub::server {
namespace {

// How long a granted lane may take to connect before its probe is given up.
constexpr DurationNs kGrantLifetime = 3 * kSecond;

void SetWay(const probe::Way& way, v1::ProbedWay& said) {
  said.set_bytes_per_s(way.bytes_per_s);
  said.set_mean_bytes_per_s(way.mean_bytes_per_s);
  said.set_duration_ns(way.duration);
  said.set_bytes(way.bytes);
}

}  // namespace

Prober::Prober(ControlThread& control, const Clock& clock, ProberOptions options)
    : control_(control), clock_(clock), options_(std::move(options)) {}

Prober::~Prober() { Stop(); }

void Prober::SetDataEndpoint(std::string host, std::uint16_t port) {
  data_host_ = std::move(host);
  data_port_ = port;
}

absl::Status Prober::Start() {
  auto credentials = MakePeerCredentials(options_.credentials);
  if (!credentials.ok()) return credentials.status();
  credentials_ = *std::move(credentials);
  return absl::OkStatus();
}

void Prober::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (grpc::ClientContext* const context : calls_) context->TryCancel();
  }
  // No worker is added from now on.
  for (Worker& worker : workers_) {
    if (worker.thread.joinable()) worker.thread.join();
  }
}

std::string Prober::Name(std::uint32_t rack) const {
  return fmt::format("rack {} ({})", rack, options_.racks[rack]);
}

absl::Status Prober::Launch(std::function<void()> function) {
  const std::lock_guard lock(mutex_);
  if (stopping_) return absl::UnavailableError("phubd is shutting down");
  std::erase_if(workers_, [](Worker& worker) {
    if (!worker.done) return false;
    worker.thread.join();  // returns at once: its work is done
    return true;
  });
  Worker& worker = workers_.emplace_back();
  absl::Status started =
      StartThread(worker.thread, "probe", [&worker, function = std::move(function)] {
        NameThisThread("probe");
        function();
        worker.done = true;
      });
  if (!started.ok()) workers_.pop_back();
  return started;
}

absl::StatusOr<probe::Limits> Prober::Check(const v1::ProbePairRequest& request) const {
  const std::size_t racks = rack_count();
  for (const std::uint32_t rack : {request.from_rack(), request.to_rack()}) {
    if (rack < racks) continue;
    return absl::InvalidArgumentError(fmt::format(
        "there is no rack {}: `racks` lists {} racks, 0 to {}", rack, racks, racks - 1));
  }
  if (request.from_rack() == request.to_rack()) {
    return absl::InvalidArgumentError(
        fmt::format("a probe needs two different racks, but both are rack {}", request.to_rack()));
  }
  return probe::MakeLimits(request.duration_ns(), request.bytes(), request.echoes());
}

absl::StatusOr<Prober::UnderWay> Prober::Begin(UnderWay wanted) {
  const std::lock_guard lock(mutex_);
  if (stopping_) return absl::UnavailableError("phubd is shutting down");
  const bool is_over =
      under_way_ && !under_way_->is_open && !under_way_->nonce.IsGood(clock_.Now());
  if (under_way_ && !is_over) {
    return absl::ResourceExhaustedError(
        fmt::format("{} is busy with a probe with {}; try again later", Name(options_.self),
                    Name(under_way_->other)));
  }
  wanted.id = random_.Next();
  if (!wanted.measures) wanted.nonce.Grant(random_, clock_.Now() + kGrantLifetime);
  under_way_ = wanted;
  return wanted;
}

void Prober::End(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  if (under_way_ && under_way_->id == id) under_way_.reset();
}

void Prober::ProbePair(Control& control, const v1::ProbePairRequest& request,
                       Answer<v1::ProbePairResponse> answer) {
  const absl::StatusOr<probe::Limits> limits = Check(request);
  if (!limits.ok()) {
    control.counters().Add(ControlCounter::probes_refused_invalid);
    return answer(limits.status(), {});
  }
  if (request.from_rack() != options_.self) {
    return RelayTo(control, request, *limits, std::move(answer));
  }
  UnderWay wanted;
  wanted.other = request.to_rack();
  wanted.measures = wanted.is_open = true;
  const absl::StatusOr<UnderWay> begun = Begin(wanted);
  if (!begun.ok()) {
    control.counters().Add(ControlCounter::probes_refused_busy);
    return answer(begun.status(), {});
  }
  MeasureHere(control, request, begun->id, *limits, std::move(answer));
}

void Prober::RelayProbe(Control& control, const v1::PeerProbeRequest& request,
                        Answer<v1::ProbePairResponse> answer) {
  absl::Status status = control.rack_messages().CheckEnvelope(request.from());
  if (status.ok() && request.probe().from_rack() != options_.self) {
    control.counters().Add(ControlCounter::probes_refused_invalid);
    status = absl::InvalidArgumentError(
        fmt::format("{} received a request to measure that is meant for rack {}",
                    Name(options_.self), request.probe().from_rack()));
  }
  if (!status.ok()) return answer(status, {});
  ProbePair(control, request.probe(), std::move(answer));
}

void Prober::MeasureHere(Control& control, const v1::ProbePairRequest& request, std::uint64_t id,
                         const probe::Limits& limits, Answer<v1::ProbePairResponse> answer) {
  v1::PeerProbeRequest asked;
  *asked.mutable_from() = control.rack_messages().MakeEnvelope(RackIndex{request.to_rack()});
  *asked.mutable_probe() = request;
  const absl::Status launched = Launch([this, asked, id, limits, answer] {
    const absl::StatusOr<v1::ProbePairResponse> result = RunMeasure(asked, limits);
    End(id);
    Finish(asked.probe(), result, answer);
  });
  if (launched.ok()) return;
  End(id);
  answer(launched, {});
}

void Prober::Finish(const v1::ProbePairRequest& request,
                    const absl::StatusOr<v1::ProbePairResponse>& result,
                    const Answer<v1::ProbePairResponse>& answer) {
  if (result.ok()) {
    LogInfo(
        "event=probe to_rack={} lane=\"{}\" round_trip_us={:.1f} out_mbit_s={:.0f} "
        "back_mbit_s={:.0f} bytes={} ms={}",
        request.to_rack(), result->lane(), static_cast<double>(result->round_trip_ns()) / 1e3,
        result->out().bytes_per_s() * 8e-6, result->back().bytes_per_s() * 8e-6,
        result->out().bytes() + result->back().bytes(), result->duration_ns() / kMillisecond);
  } else {
    LogWarning("event=probe_failed to_rack={} message=\"{}\"", request.to_rack(),
               MessageOf(result.status()));
  }
  control_.Run([&](Control& control) {
    control.counters().Add(result.ok() ? ControlCounter::probes : ControlCounter::probes_failed);
    if (!result.ok()) return answer(result.status(), {});
    control.counters().Add(ControlCounter::probe_bytes,
                           result->out().bytes() + result->back().bytes());
    answer(absl::OkStatus(), *result);
  });
}

absl::StatusOr<v1::ProbeGrant> Prober::AskForLane(const v1::PeerProbeRequest& request) {
  const std::uint32_t to = request.probe().to_rack();
  const auto stub = v1::Probe::NewStub(MakePeerChannel(options_.racks[to], credentials_));
  Call call(*this, options_.liveness_timeout);
  v1::ProbeGrant grant;
  const grpc::Status status = stub->GrantProbe(call.context(), request, &grant);
  if (!status.ok()) return SaidByPeer(Name(to), status);
  if (grant.grant().nonce().size() != wire::kNonceBytes || grant.endpoint().port() > 0xFFFF) {
    return absl::AbortedError(
        fmt::format("{} granted a probe lane without a valid nonce or port", Name(to)));
  }
  return grant;
}

absl::StatusOr<v1::ProbePairResponse> Prober::RunMeasure(const v1::PeerProbeRequest& request,
                                                         const probe::Limits& limits) {
  const TimeNs begun = clock_.Now();
  const std::uint32_t to = request.probe().to_rack();
  const absl::StatusOr<v1::ProbeGrant> grant = AskForLane(request);
  if (!grant.ok()) return grant.status();
  wire::LaneHello hello;
  hello.rank = Rank{kProbeRankBase + options_.self};
  hello.incarnation = Incarnation{grant->probe()};
  std::copy_n(reinterpret_cast<const std::byte*>(grant->grant().nonce().data()), hello.nonce.size(),
              hello.nonce.begin());
  const std::string host =
      grant->endpoint().host().empty() ? HostOfRack(options_.racks[to]) : grant->endpoint().host();
  const auto port = static_cast<std::uint16_t>(grant->endpoint().port());
  const auto dial = grant->tls() ? transport::DialTls : transport::DialTcp;
  const auto failed = [&](const absl::Status& status) {
    return absl::AbortedError(fmt::format("cannot probe {} from {}: {}", Name(to),
                                          Name(options_.self), MessageOf(status)));
  };
  auto lane = dial(host, port, hello, std::min(options_.liveness_timeout, kPeerDialTimeoutMax), {});
  if (!lane.ok()) return failed(lane.status());
  auto& tcp = static_cast<transport::TcpConnection&>(**lane);
  const absl::StatusOr<probe::Result> result = probe::Measure(tcp, limits, clock_, stopping_);
  if (!result.ok()) return failed(result.status());
  v1::ProbePairResponse response;
  response.set_from_rack(options_.self);
  response.set_to_rack(to);
  response.set_lane(fmt::format("{} {}:{}", grant->tls() ? "tcp+tls" : "tcp", host, port));
  response.set_round_trip_min_ns(result->round_trip_min);
  response.set_round_trip_ns(result->round_trip);
  response.set_round_trip_median_ns(result->round_trip_median);
  response.set_echoes(result->echoes);
  SetWay(result->out, *response.mutable_out());
  SetWay(result->back, *response.mutable_back());
  response.set_duration_ns(clock_.Now() - begun);
  return response;
}

void Prober::RelayTo(Control& control, const v1::ProbePairRequest& request,
                     const probe::Limits& limits, Answer<v1::ProbePairResponse> answer) {
  if (!BeginRelay()) {
    control.counters().Add(ControlCounter::probes_refused_busy);
    return answer(TooManyRelays(), {});
  }
  v1::PeerProbeRequest asked;
  *asked.mutable_from() = control.rack_messages().MakeEnvelope(RackIndex{request.from_rack()});
  *asked.mutable_probe() = request;
  // Includes that rack's own timeouts for the third rack, and the network delay to it.
  const DurationNs timeout =
      2 * limits.duration + probe::kPatience + kPeerDialTimeoutMax + 2 * options_.liveness_timeout;
  const absl::Status launched = Launch([this, asked, timeout, answer] {
    const std::uint32_t from = asked.probe().from_rack();
    const auto stub = v1::Probe::NewStub(MakePeerChannel(options_.racks[from], credentials_));
    v1::ProbePairResponse response;
    grpc::Status status;
    {
      Call call(*this, timeout);
      status = stub->RelayProbe(call.context(), asked, &response);
    }
    EndRelay();
    const absl::Status said = SaidByPeer(Name(from), status);
    control_.Run([&](Control&) { answer(said, response); });
  });
  if (launched.ok()) return;
  EndRelay();
  answer(launched, {});
}

}  // namespace phub::server
