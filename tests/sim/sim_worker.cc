// The life of a worker: its daemons, its lanes, and its end.
#include "tests/sim/sim_worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "client/session/fault_text.h"
#include "tests/sim/sim_worker_calls.h"
#include "tests/sim/sim_worker_key.h"

namespace phub::sim {

using client::Command;

namespace {

client::Endpoint ParsedEndpoint(const SimDaemon& daemon) {
  const auto endpoint = client::ParseEndpoint(daemon.endpoint());
  PHUB_CHECK(endpoint.ok(), "endpoint={}", daemon.endpoint());
  return *endpoint;
}

}  // namespace

SimWorker::SimWorker(SimNetwork& network, std::span<const std::unique_ptr<SimDaemon>> daemons,
                     SeededRandom& random, SimJob& job, std::uint32_t rank, NodeId node)
    : network_(network), random_(random), job_(job), script_(job.script), rank_(rank), node_(node) {
  transports_.push_back(std::make_unique<SimTransport>(network));
  for (const auto& daemon : daemons) {
    auto channel = std::make_unique<SimControlChannel>(
        network, *daemon, fmt::format("10.0.0.{}", node),
        static_cast<DurationNs>(50'000 + random.Below(2'000'000)));
    SimControlChannel& calls = *channel;
    known_.push_back(std::make_unique<client::DaemonLink>(
        daemon->position(), ParsedEndpoint(*daemon), std::move(channel)));
    links_.push_back(std::make_unique<Link>(*this, *daemon, *known_.back(), calls));
  }
  DrawSharing();
}

SimWorker::~SimWorker() { *alive_ = false; }

void SimWorker::After(DurationNs delay, std::function<void()> what) {
  network_.Schedule(network_.clock().Now() + delay, [alive = alive_, what = std::move(what)] {
    if (*alive) what();
  });
}

bool SimWorker::done() const {
  return state_ == State::kLeft || state_ == State::kFailed || state_ == State::kDead;
}

std::uint64_t SimWorker::progress() const { return keys_.empty() ? 0 : keys_[0]->completed; }

// ---- Lanes -------------------------------------------------------------------------------------

SimWorker::Link& SimWorker::LinkOf(std::uint32_t lane) {
  std::size_t i = links_.size() - 1;
  while (links_[i]->first_lane > lane) --i;
  return *links_[i];
}

void SimWorker::OpenLanes(Link& link, const std::vector<std::uint32_t>& lanes) {
  if (!WantsLanes()) return;
  v1::OpenLanesRequest request;
  request.set_session_id(link.joined.session_id());
  for (const std::uint32_t lane : lanes) request.add_cores(lane - link.first_lane);
  link.channel->Call<rpc::OpenLanes>(
      request, CallTimeout(),
      [this, &link, lanes](const absl::StatusOr<v1::OpenLanesResponse>& answer) {
        // If lanes may come back, a call that found no daemon may be repeated for a while.
        const DurationNs lost = link.lost_at == 0 ? 0 : network_.clock().Now() - link.lost_at;
        if (script_.wait_policy && absl::IsDeadlineExceeded(answer.status()) &&
            (lanes_opened_ || lost < script_.wait_timeout)) {
          return OpenLanes(link, lanes);
        }
        OnGranted(link, answer);
      });
}

void SimWorker::OnGranted(Link& link, const absl::StatusOr<v1::OpenLanesResponse>& answer) {
  if (!WantsLanes()) return;
  if (!answer.ok()) return Refused("open lanes", link, answer.status());
  for (const v1::LaneGrant& grant : answer->grants()) {
    wire::LaneHello hello;
    hello.version_min = wire::kLaneVersionMin;
    hello.version_max = wire::kLaneVersion;
    hello.core = CoreIndex{grant.core()};
    hello.rank = Rank{rank_};
    hello.incarnation = config_.incarnation;
    hello.membership_epoch = config_.membership_epoch;
    std::memcpy(hello.nonce.data(), grant.nonce().data(),
                std::min(grant.nonce().size(), hello.nonce.size()));
    After(static_cast<DurationNs>(100'000 + random_.Below(1'000'000)),
          [this, lane = link.first_lane + grant.core(), hello] { Dial(lane, hello); });
  }
}

// Does the work of phubd's listener: the gate admits, then accepts the connection.
void SimWorker::Dial(std::uint32_t lane, const wire::LaneHello& hello) {
  if (!WantsLanes()) return;
  Link& link = LinkOf(lane);
  if (!link.daemon.alive()) {
    if (!script_.wait_policy && !link.daemon.closed()) return;  // its silence is noticed
    if (!script_.wait_policy) {
      return Refused("open lane", link, absl::UnavailableError("connection refused"));
    }
    return After(kSecond, [this, &link, lane] { OpenLanes(link, {lane}); });
  }
  if (link.daemon.control_is_stuck()) {  // the listener waits for the lock
    return After(kMillisecond, [this, lane, hello] { Dial(lane, hello); });
  }
  const server::PeerProcess process{.pid = node_, .uid = 0};
  const wire::LaneRefusal refusal = link.daemon.Turn([&](server::Control& control) {
    return control.lanes().AdmitLane(hello, link.shared ? std::optional(process) : std::nullopt);
  });
  if (refusal != wire::LaneRefusal::kNone) {
    if (refusal == wire::LaneRefusal::kBusy) {
      return After(kMillisecond, [this, &link, lane] { OpenLanes(link, {lane}); });
    }
    if (refusal != wire::LaneRefusal::kJob) {
      mistake_ = fmt::format("lane {} refused: {}", lane, wire::ToString(refusal));
    }
    return;
  }
  Command command;
  command.kind = Command::Kind::kAttachLane;
  command.lane = lane;
  if (link.shared) {
    lanes_[lane].connection = AttachShared(link, hello);
    command.transport_index = kShmTransportIndex;
  } else {
    auto [mine, theirs] = network_.Connect(node_, link.daemon.node(hello.core.value));
    link.daemon.Turn([&](server::Control& control) {
      control.lanes().AttachLane(hello, std::move(theirs), kSimTransportIndex, "sim",
                                 fmt::format("node{}", node_));
    });
    lanes_[lane].connection = std::move(mine);
  }
  command.connection = lanes_[lane].connection.get();
  lanes_[lane].attached = true;
  lanes_[lane].shared = link.shared;
  lanes_[lane].opened = true;
  Submit(command);
  const bool all =
      std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& each) { return each.opened; });
  if (all && !std::exchange(lanes_opened_, true)) AskWhereToResume();
}

void SimWorker::OnLaneClosed(const client::LaneClosed& closed) {
  if (closed.fault != client::LaneFault::kNone) {
    mistake_ = fmt::format("lane {}: {}", closed.lane, client::ToString(closed.fault));
  }
  if (closed.error == transport::TransportError::kProtocol) {
    mistake_ = fmt::format("lane {}: {}", closed.lane, transport::ToString(closed.protocol_error));
  }
  Link& link = LinkOf(closed.lane);
  link.lane_lost_at = network_.clock().Now();
  link.lane_why = client::LaneLost(EndpointOf(link), closed.lane - link.first_lane, closed,
                                   script_.name, rank_);
  lanes_[closed.lane].connection = nullptr;
  lanes_[closed.lane].attached = false;
  if (!script_.wait_policy || !WantsLanes()) return;
  After(static_cast<DurationNs>(random_.Below(5'000'000)),
        [this, lane = closed.lane] { OpenLanes(LinkOf(lane), {lane}); });
}

void SimWorker::BreakLane(std::uint32_t lane) {
  // Shared memory does not break while both ends live.
  if (lane >= lanes_.size() || !lanes_[lane].attached || lanes_[lane].shared) return;
  network_.Reset(static_cast<SimNetwork::Connection&>(*lanes_[lane].connection));
}

void SimWorker::BreakSomething() {
  if (lanes_.empty() || state_ != State::kTraining) return;
  if (!script_.wait_policy || random_.Chance(1, 8)) {
    Link& link = *links_[random_.Below(links_.size())];
    // Not before the last loss is repaired: repeated breaks alone could exceed liveness_timeout.
    if (!link.attended || link.lost_at != 0 || !link.daemon.alive()) return;
    ++streams_broken_;
    return link.channel->BreakStream();
  }
  BreakLane(static_cast<std::uint32_t>(random_.Below(lanes_.size())));
}

// ---- Daemons -----------------------------------------------------------------------------------

void SimWorker::Attend(Link& link) {
  link.attended = true;
  link.last_heard = network_.clock().Now();
  link.channel->Attend(link);
}

void SimWorker::Heartbeat() {
  if (done()) return;
  for (const auto& link : links_) {
    if (!link->attended) {
      LookAt(*link);
      continue;
    }
    v1::Heartbeat heartbeat;
    heartbeat.set_session_id(link->joined.session_id());
    heartbeat.set_sequence(++heartbeat_sequence_);
    link->channel->SendHeartbeat(heartbeat);
    LookAt(*link);
  }
  After(liveness_timeout_ / 4, [this] { Heartbeat(); });
}

void SimWorker::LookAt(Link& link) {
  if (state_ == State::kStopping || state_ == State::kLeaving || done()) return;
  const TimeNs now = network_.clock().Now();
  const DurationNs age = now - link.last_heard;
  const transport::SilenceJudge judge = JudgeOf(link);
  const auto verdict = judge.Judge(liveness_timeout_);
  if (verdict != transport::SilenceJudge::Verdict::kAlive) {
    if (!script_.wait_policy) {
      return Fail(client::LanesSilent(EndpointOf(link), judge.most(), age < liveness_timeout_,
                                      script_.name, rank_),
                  &link);
    }
    CloseSilentLanes(link);
  }
  const bool vouched = judge.count() > 0 && verdict == transport::SilenceJudge::Verdict::kAlive;
  if (vouched) link.vouched_at = now;
  if (link.attended && age >= liveness_timeout_) {
    const phub::Status silence = client::DaemonSilent(EndpointOf(link), age, script_.name, rank_);
    if (!script_.wait_policy && now - link.vouched_at >= liveness_timeout_) {
      return Fail(silence, &link);
    }
    if (link.silent_at == 0) link.silent_at = now;
    link.why = silence;
    link.channel->Reconnect();
  }
  if (vouched) link.silent_at = 0;
  if (link.silent_at != 0 && now - link.silent_at >= script_.wait_timeout) {
    return Fail(client::WaitedInVain(link.why, now - link.silent_at), &link);
  }
  if (link.lane_lost_at == 0 || (script_.wait_policy && HasLanes(link))) return;
  const DurationNs waited = now - link.lane_lost_at;
  if (script_.wait_policy) {
    if (waited >= script_.wait_timeout) Fail(client::WaitedInVain(link.lane_why, waited), &link);
  } else if (!HasLanes(link) && link.refused_at >= link.lane_lost_at) {
    Fail(client::ControlLostToo(link.lane_why, absl::UnavailableError("refused")), &link);
  } else if (waited >= liveness_timeout_) {
    Fail(link.lane_why, &link);
  }
}

// Empty if some lane is not open.
transport::SilenceJudge SimWorker::JudgeOf(const Link& link) const {
  transport::SilenceJudge judge;
  if (engine_ == nullptr || !lanes_opened_) return {};
  for (int i = 0; i < link.joined.cores_size(); ++i) {
    const std::uint32_t lane = link.first_lane + static_cast<std::uint32_t>(i);
    const DurationNs silence = engine_->Silence(lane);
    if (silence == client::Engine::kNotWatched) return {};
    judge.Add(lane, silence);
  }
  return judge;
}

void SimWorker::CloseSilentLanes(const Link& link) {
  for (int i = 0; i < link.joined.cores_size(); ++i) {
    const std::uint32_t lane = link.first_lane + static_cast<std::uint32_t>(i);
    if (engine_->Silence(lane) < liveness_timeout_) continue;
    Command close;
    close.kind = Command::Kind::kCloseSilentLane;
    close.lane = lane;
    Submit(close);
  }
}

bool SimWorker::HasLanes(const Link& link) const {
  const auto first = lanes_.begin() + link.first_lane;
  return std::any_of(first, first + link.joined.cores_size(),
                     [](const Lane& lane) { return lane.attached; });
}

void SimWorker::OnEvent(Link& link, const v1::SessionEvent& event) {
  link.last_heard = network_.clock().Now();
  link.lost_at = 0;
  link.silent_at = 0;
  link.refused_at = 0;
  if (event.has_dump()) {
    v1::ReportDumpRequest report;
    report.set_session_id(link.joined.session_id());
    report.set_number(event.dump().number());
    report.mutable_record()->set_headline(Describe());
    link.channel->Call<rpc::ReportDump>(report, kSecond, [](const auto&) {});
  }
  if (event.has_job_failed()) Fail(client::FaultStatus(event.job_failed().fault()), &link);
}

void SimWorker::OnAttendClosed(Link& link, const absl::Status& status) {
  link.attended = false;
  if (!WantsLanes()) return;
  if (!client::IsPassing(status)) {
    return Fail(client::StreamLost(EndpointOf(link), status, script_.name, rank_), &link);
  }
  const TimeNs now = network_.clock().Now();
  if (link.lost_at == 0)
    link.lost_at = now;
  else
    link.refused_at = now;
  After(static_cast<DurationNs>(random_.Below(300)) * kMillisecond, [this, &link] {
    if (WantsLanes()) Attend(link);
  });
}

}  // namespace phub::sim
