// The answering end of a probe: grants a lane to the measuring daemon and answers its messages.
#include <fmt/format.h>

#include <utility>

#include "common/base/log.h"
#include "common/base/status_text.h"
#include "server/control/racks/rack_messages.h"
#include "server/control/rpc/prober.h"

namespace phub::server {

void Prober::GrantProbe(Control& control, const v1::PeerProbeRequest& request,
                        Answer<v1::ProbeGrant> answer) {
  absl::Status status = control.rack_messages().CheckEnvelope(request.from());
  if (!status.ok()) return answer(status, {});
  absl::StatusOr<probe::Limits> limits = Check(request.probe());
  if (limits.ok() && (request.probe().from_rack() != request.from().rack() ||
                      request.probe().to_rack() != options_.self)) {
    limits = absl::InvalidArgumentError(
        "only the rack that measures to this one may request a lane for the probe");
  }
  if (!limits.ok()) {
    control.counters().Add(ControlCounter::probes_refused_invalid);
    return answer(limits.status(), {});
  }
  UnderWay wanted;
  wanted.other = request.from().rack();
  wanted.limits = *limits;
  const absl::StatusOr<UnderWay> begun = Begin(wanted);
  if (!begun.ok()) {
    control.counters().Add(ControlCounter::probes_refused_busy);
    return answer(begun.status(), {});
  }
  v1::ProbeGrant grant;
  grant.set_probe(begun->id);
  grant.set_tls(options_.tls_lanes);
  grant.mutable_endpoint()->set_host(data_host_);
  grant.mutable_endpoint()->set_port(data_port_);
  const wire::Nonce& nonce = begun->nonce.value();
  grant.mutable_grant()->set_nonce(nonce.data(), nonce.size());
  answer(absl::OkStatus(), grant);
}

Prober::UnderWay* Prober::Granted(const wire::LaneHello& hello) {
  const bool is_it = under_way_ && !under_way_->measures && !under_way_->is_open &&
                     hello.rank.value == kProbeRankBase + under_way_->other &&
                     hello.incarnation.value == under_way_->id &&
                     under_way_->nonce.IsGood(clock_.Now());
  return is_it ? &*under_way_ : nullptr;
}

std::optional<wire::Nonce> Prober::FindNonce(const wire::LaneHello& hello) {
  const std::lock_guard lock(mutex_);
  UnderWay* const granted = Granted(hello);
  if (granted == nullptr) return std::nullopt;
  return granted->nonce.value();
}

wire::LaneRefusal Prober::Admit(const wire::LaneHello& hello, bool encrypted) {
  const std::lock_guard lock(mutex_);
  UnderWay* const granted = Granted(hello);
  if (granted == nullptr) return wire::LaneRefusal::kNonce;
  if (!encrypted && options_.tls_lanes) return wire::LaneRefusal::kEncryption;
  if (!granted->nonce.Take(hello.nonce)) return wire::LaneRefusal::kNonce;
  granted->is_open = true;
  return wire::LaneRefusal::kNone;
}

void Prober::Attach(const wire::LaneHello& hello,
                    std::unique_ptr<transport::Connection> connection) {
  const std::uint64_t id = hello.incarnation.value;
  probe::Limits limits;
  {
    const std::lock_guard lock(mutex_);
    if (!under_way_ || under_way_->id != id) return;
    limits = under_way_->limits;
  }
  const std::shared_ptr<transport::Connection> lane = std::move(connection);
  const absl::Status launched =
      Launch([this, lane, limits, id, other = hello.rank.value - kProbeRankBase] {
        // All lanes of the data port's listener use tcp.
        auto& tcp = static_cast<transport::TcpConnection&>(*lane);
        const absl::Status status = probe::AnswerProbe(tcp, limits, clock_, stopping_);
        if (!status.ok()) {
          LogWarning("event=probe_answer_failed rack={} message=\"{}\"", other, MessageOf(status));
        }
        // First, since the measuring daemon waits for the lane to close and may then request
        // another probe.
        End(id);
        tcp.Shutdown();
      });
  if (launched.ok()) return;
  LogWarning("event=probe_answer_failed rack={} message=\"{}\"", hello.rank.value - kProbeRankBase,
             MessageOf(launched));
  End(id);
}

}  // namespace phub::server
