#include "client/session/rack_join.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "client/session/delayed_join.h"
#include "client/session/fault_text.h"
#include "client/session/rack_facts.h"
#include "common/base/host_name.h"
#include "common/base/ids.h"
#include "common/base/log.h"

namespace phub::client {
namespace {

// How long a restarted process tries to take over its rank: daemons detect the death of the old
// process within half of their liveness_timeout, two seconds by default.
constexpr std::chrono::seconds kTakeOverPatience{4};
constexpr std::chrono::milliseconds kTakeOverPause{50};

constexpr std::size_t kSessionIdBytes = 16;

Status Bad(const DaemonLink& link, const char* call, const std::string& what) {
  return Status(StatusCode::kInternal,
                fmt::format("daemon {} answered {} with {}", link.endpoint.ToString(), call, what));
}

// The state of one join.
class Joining {
 public:
  Joining(const JoinSettings& settings, Connector& connector, CallWaiter& waiter)
      : settings_(settings), connector_(connector), waiter_(waiter) {}

  Result<DaemonLinks> Run();

 private:
  Status Find();
  Result<v1::Rack> AskRack(DaemonLink& link) const;
  Status CheckRack(const DaemonLink& asked) const;
  Status ConnectByOwnName(std::unique_ptr<DaemonLink>& asked);
  Status ConnectAll(std::unique_ptr<DaemonLink> asked);
  Status AskCores(DaemonLink& link);
  Status CheckCores() const;
  Status Reserve(DaemonLink& link);
  Status CheckJoined(const DaemonLink& link) const;
  Status CheckLikeAnchor(const DaemonLink& link) const;
  Status CommitAll();
  v1::JoinRequest RequestFor(const DaemonLink& link) const;
  Status FromCall(const char* call, const DaemonLink& link, const absl::Status& status) const;

  const JoinSettings& settings_;
  Connector& connector_;
  CallWaiter& waiter_;
  v1::Rack rack_;
  DaemonLinks links_;
  bool run_is_over_ = false;  // a daemon other than the anchor answered that the run ended
};

Status Joining::FromCall(const char* call, const DaemonLink& link,
                         const absl::Status& status) const {
  // With one daemon, an error that it returned needs no daemon name.
  if (links_.size() < 2) return CallStatus(call, link.endpoint, status);
  return NamedCallStatus(call, link.endpoint, status);
}

// ---- Finding the rack --------------------------------------------------------------------------

Result<v1::Rack> Joining::AskRack(DaemonLink& link) const {
  v1::GetRackRequest request;
  request.set_tenant(settings_.tenant);
  auto rack = waiter_.Await<v1::Rack>([&](auto done) {
    link.channel->Call<rpc::GetRack>(request, settings_.call_timeout, std::move(done));
  });
  if (!rack.ok()) return FromCall("GetRack", link, rack.status());
  return *std::move(rack);
}

Status Joining::Find() {
  Result<std::unique_ptr<ControlChannel>> channel = connector_.Connect(settings_.daemon);
  if (!channel.ok()) return channel.status();
  auto asked = std::make_unique<DaemonLink>(0, settings_.daemon, *std::move(channel));
  Result<v1::Rack> rack = AskRack(*asked);
  if (!rack.ok()) return rack.status();
  rack_ = *std::move(rack);
  if (rack_.daemons().empty()) {
    links_.push_back(std::move(asked));
    return Status();
  }
  Status status = CheckRack(*asked);
  if (status.ok()) status = ConnectByOwnName(asked);
  if (status.ok()) status = ConnectAll(std::move(asked));
  for (std::size_t i = 0; i < links_.size() && status.ok(); ++i)
    if (i != rack_.self()) status = AskCores(*links_[i]);
  return status.ok() ? CheckCores() : status;
}

// The daemon's response sizes our tables, so check its limits first.
Status Joining::CheckRack(const DaemonLink& asked) const {
  const auto count = static_cast<std::uint32_t>(rack_.daemons_size());
  if (count > kDaemonsMax)
    return Bad(asked, "GetRack",
               fmt::format("a rack of {} daemons; at most {} are supported", count, kDaemonsMax));
  if (rack_.self() >= count)
    return Bad(asked, "GetRack",
               fmt::format("position {} in a rack of {} daemons", rack_.self(), count));
  return Status();
}

Status Joining::ConnectByOwnName(std::unique_ptr<DaemonLink>& asked) {
  Result<Endpoint> own = EndpointToKeep(settings_.daemon, rack_);
  if (!own.ok()) return Bad(*asked, "GetRack", own.status().message());
  if (own->ToString() == asked->endpoint.ToString()) return Status();
  Result<std::unique_ptr<ControlChannel>> channel = connector_.Connect(*own);
  if (!channel.ok()) return channel.status();
  asked = std::make_unique<DaemonLink>(0, *std::move(own), *std::move(channel));
  return Status();
}

// Daemons do not talk to each other, so ask each for its number of core loops.
Status Joining::AskCores(DaemonLink& link) {
  const Result<v1::Rack> rack = AskRack(link);
  if (!rack.ok()) return rack.status();
  if (rack->configuration() != rack_.configuration()) {
    const std::string asked = links_[rack_.self()]->endpoint.ToString();
    return Status(
        StatusCode::kFailedPrecondition,
        fmt::format("daemons {} and {} have different configurations ({}); "
                    "all daemons of a rack must have the same `daemons`, chunk_bytes, "
                    "staging_bytes_per_lane, version, place among `racks` and topology: compare "
                    "the output of phubd --dump-config of both (job {}, rank {})",
                    asked, link.endpoint.ToString(),
                    DifferenceOf(rack_, asked, *rack, link.endpoint.ToString()),
                    settings_.options.job, settings_.options.rank));
  }
  if (rack->self() != link.position || rack->daemons_size() != rack_.daemons_size())
    return Bad(
        link, "GetRack",
        fmt::format("position {} in a rack of {} daemons, but daemon {} lists position {} of {}",
                    rack->self(), rack->daemons_size(), links_[rack_.self()]->endpoint.ToString(),
                    link.position, rack_.daemons_size()));
  const auto position = static_cast<int>(link.position);
  rack_.mutable_daemons(position)->set_core_count(rack->daemons(position).core_count());
  return Status();
}

Status Joining::CheckCores() const {
  std::uint64_t lanes = 0;
  for (const std::unique_ptr<DaemonLink>& link : links_) {
    const std::uint32_t cores = rack_.daemons(static_cast<int>(link->position)).core_count();
    if (cores == 0) return Bad(*link, "GetRack", "no core loops");
    lanes += cores;
  }
  if (lanes > kLanesMax)
    return Status(StatusCode::kInternal,
                  fmt::format("the rack of {} has {} core loops; at most {} are supported",
                              settings_.daemon.ToString(), lanes, kLanesMax));
  return Status();
}

Status Joining::ConnectAll(std::unique_ptr<DaemonLink> asked) {
  for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(rack_.daemons_size()); ++i) {
    if (i == rack_.self()) {
      links_.push_back(std::make_unique<DaemonLink>(i, asked->endpoint, std::move(asked->channel)));
      continue;
    }
    Result<Endpoint> endpoint = ParseEndpoint(rack_.daemons(static_cast<int>(i)).endpoint());
    if (!endpoint.ok())
      return Status(StatusCode::kInternal,
                    fmt::format("the list of daemons from daemon {} is invalid: {}",
                                settings_.daemon.ToString(), endpoint.status().message()));
    Result<std::unique_ptr<ControlChannel>> channel = connector_.Connect(*endpoint);
    if (!channel.ok())
      return Status(channel.status().code(),
                    fmt::format("{} (daemon number {} in the rack of {}; a job needs all daemons)",
                                channel.status().message(), i, settings_.daemon.ToString()));
    links_.push_back(std::make_unique<DaemonLink>(i, *std::move(endpoint), *std::move(channel)));
  }
  return Status();
}

v1::Screening ToProto(Screening screening) {
  switch (screening) {
    case Screening::kOff: return v1::SCREENING_OFF;
    case Screening::kReport: return v1::SCREENING_REPORT;
    case Screening::kReject: return v1::SCREENING_REJECT;
  }
  return v1::SCREENING_UNSPECIFIED;
}

// ---- Reserving and committing ------------------------------------------------------------------

v1::JoinRequest Joining::RequestFor(const DaemonLink& link) const {
  const JobOptions& options = settings_.options;
  v1::JoinRequest request;
  request.set_protocol_version_min(kProtocolVersionMin);
  request.set_protocol_version_max(kProtocolVersionMax);
  request.set_client_version(Version());
  request.set_tenant(settings_.tenant);
  request.set_job(options.job);
  request.set_rank(options.rank);
  v1::JobOptions& wanted = *request.mutable_options();
  wanted.set_world_size(options.world_size);
  wanted.set_chunk_bytes(options.chunk_bytes);
  wanted.set_staging_bytes_per_lane(options.staging_bytes);
  const bool wait = options.on_loss == LossPolicy::kWait;
  wanted.set_on_loss(wait ? v1::LOSS_POLICY_WAIT : v1::LOSS_POLICY_FAIL);
  if (wait)
    wanted.set_wait_timeout_ns(
        std::chrono::duration_cast<std::chrono::nanoseconds>(options.wait_timeout).count());
  wanted.set_restart(options.restart);
  wanted.set_join_timeout_ns(
      std::chrono::duration_cast<std::chrono::nanoseconds>(options.join_timeout).count());
  wanted.set_screening(ToProto(options.screening));
  wanted.set_apply(options.apply == Apply::kIteration ? v1::APPLY_ITERATION : v1::APPLY_CHUNK);
  wanted.set_clip_norm(options.clip_norm);
  wanted.set_skip_nonfinite(options.skip_nonfinite);
  wanted.set_plan(options.plan);
  wanted.set_sum(options.sum == Sum::kFixed ? v1::SUM_FIXED : v1::SUM_FLOAT);
  wanted.set_sum_block(options.sum_block);
  request.set_host(HostName());
  request.set_pid(static_cast<std::uint32_t>(getpid()));
  request.set_dumps(true);
  request.set_keeps_lanes(true);
  request.set_configuration(rack_.configuration());
  if (links_.size() > 1) *request.mutable_settings() = rack_.settings();
  request.set_daemon(link.position);
  if (link.position > 0) request.set_incarnation(links_.front()->joined.incarnation());
  for (const v1::RackDaemon& daemon : rack_.daemons())
    request.add_daemon_cores(daemon.core_count());
  return request;
}

Status Joining::Reserve(DaemonLink& link) {
  const v1::JoinRequest request = RequestFor(link);
  const auto join = [&] { return CallJoin(settings_, link, request, waiter_); };
  auto response = join();
  // A daemon that has not yet detected the death of the old process reports that it is alive.
  const auto patience = std::chrono::steady_clock::now() + kTakeOverPatience;
  while (settings_.options.restart &&
         response.status().code() == absl::StatusCode::kAlreadyExists &&
         std::chrono::steady_clock::now() < patience) {
    std::this_thread::sleep_for(kTakeOverPause);
    response = join();
  }
  if (link.position > 0) run_is_over_ = response.status().code() == absl::StatusCode::kAborted;
  if (!response.ok()) return FromCall("Join", link, response.status());
  link.joined = *std::move(response);
  if (link.position > 0) {
    const DaemonLink& before = *links_[link.position - 1];
    link.first_lane = before.first_lane + before.lane_count();
  }
  Status status = CheckJoined(link);
  if (status.ok() && link.position > 0) status = CheckLikeAnchor(link);
  return status;
}

Status Joining::CheckJoined(const DaemonLink& link) const {
  const v1::JoinResponse& joined = link.joined;
  const auto bad = [&](const std::string& what) {
    return Bad(link, "Join", fmt::format("{} (its version is {})", what, joined.daemon_version()));
  };
  const std::uint32_t version = joined.protocol_version();
  if (version < kProtocolVersionMin || version > kProtocolVersionMax)
    return bad(fmt::format("protocol version {}; this library supports {} to {}", version,
                           kProtocolVersionMin, kProtocolVersionMax));
  if (joined.session_id().size() != kSessionIdBytes) return bad("a session id of invalid size");
  const std::uint32_t chunk_bytes = joined.chunk_bytes();
  if (chunk_bytes < kChunkBytesMin || chunk_bytes > kChunkBytesMax || chunk_bytes % 64 != 0)
    return bad(fmt::format("chunks of {} bytes", chunk_bytes));
  if (joined.slots_per_lane() < 1 || joined.slots_per_lane() > kSlotsPerLaneMax)
    return bad(fmt::format("{} slots per lane", joined.slots_per_lane()));
  const auto unsupported = [&](const char* option, const char* instead) {
    return Status(
        StatusCode::kFailedPrecondition,
        fmt::format("daemon {} has version {}, which does not support {}: upgrade it, or join job "
                    "{} with {}",
                    link.endpoint.ToString(), joined.daemon_version(), option,
                    settings_.options.job, instead));
  };
  if (settings_.options.apply == Apply::kIteration && joined.apply() != v1::APPLY_ITERATION)
    return unsupported("apply=kIteration", "apply=kChunk");
  if (settings_.options.sum == Sum::kFixed && joined.sum() != v1::SUM_FIXED)
    return unsupported("sum=kFixed", "sum=kFloat");
  if (joined.liveness_timeout_ns() <= 0) return bad("no liveness timeout");
  if (joined.cores().empty()) return bad("no core loops");
  if (joined.cores_size() > static_cast<int>(kLanesMax))
    return bad(fmt::format("{} core loops", joined.cores_size()));
  for (const v1::CoreEndpoint& core : joined.cores())
    if (core.port() == 0 || core.port() > UINT16_MAX)
      return bad(fmt::format("port {} for core {}", core.port(), core.core()));
  if (rack_.daemons().empty()) return Status();
  const std::uint32_t expected = rack_.daemons(static_cast<int>(link.position)).core_count();
  if (link.lane_count() != expected)
    return bad(fmt::format("{} core loops instead of {} as in the rack's list", link.lane_count(),
                           expected));
  return Status();
}

// One engine serves the lanes of all daemons, so these values must be the same at all of them.
Status Joining::CheckLikeAnchor(const DaemonLink& link) const {
  const v1::JoinResponse& joined = link.joined;
  const v1::JoinResponse& anchor = links_.front()->joined;
  const auto differs = [&](const char* what, std::uint64_t here, std::uint64_t there) {
    return Status(
        StatusCode::kInternal,
        fmt::format("daemon {} has {} {} for job {}, daemon {} has {}", link.endpoint.ToString(),
                    what, here, settings_.options.job, links_.front()->endpoint.ToString(), there));
  };
  if (joined.incarnation() != anchor.incarnation())
    return differs("incarnation", joined.incarnation(), anchor.incarnation());
  if (joined.membership_epoch() != anchor.membership_epoch())
    return differs("membership epoch", joined.membership_epoch(), anchor.membership_epoch());
  if (joined.chunk_bytes() != anchor.chunk_bytes())
    return differs("chunk_bytes", joined.chunk_bytes(), anchor.chunk_bytes());
  if (joined.slots_per_lane() != anchor.slots_per_lane())
    return differs("slots_per_lane", joined.slots_per_lane(), anchor.slots_per_lane());
  return Status();
}

// Commits at all daemons at once, with a short timeout: each daemon now expects heartbeats, but
// they start only after all have answered.
Status Joining::CommitAll() {
  const DurationNs lease = links_.front()->joined.liveness_timeout_ns();
  const DurationNs timeout = std::min(settings_.call_timeout, lease * 3 / 4);
  const SystemClock clock;
  const TimeNs begin = clock.Now();
  const auto answers =
      waiter_.AwaitAll<v1::CommitResponse>(links_.size(), [&](std::size_t i, auto done) {
        v1::CommitRequest request;
        request.set_session_id(links_[i]->joined.session_id());
        links_[i]->channel->Call<rpc::Commit>(request, timeout, std::move(done));
      });
  const TimeNs end = clock.Now();
  for (std::size_t i = 0; i < links_.size(); ++i) {
    if (!answers[i].ok()) return FromCall("Commit", *links_[i], answers[i].status());
    if (!answers[i]->has_clock()) continue;
    const v1::DaemonClock& daemon = answers[i]->clock();
    links_[i]->clock =
        MeasuredClock::Of(daemon.host(), daemon.started_ns(), daemon.now_ns(), begin, end);
  }
  return Status();
}

Result<DaemonLinks> Joining::Run() {
  Status status = Find();
  for (std::size_t i = 0; i < links_.size() && status.ok(); ++i) status = Reserve(*links_[i]);
  if (status.ok()) status = CommitAll();
  if (status.ok()) return std::move(links_);
  // Without a response to Join there is no reservation to return.
  std::erase_if(links_, [](const std::unique_ptr<DaemonLink>& link) {
    return link->joined.session_id().empty();
  });
  // A daemon that has committed the rank ends the job when it leaves, so send the reason.
  const std::string why(status.message());
  const Status left = LeaveRack(links_, settings_.call_timeout, waiter_, why, run_is_over_);
  if (!left.ok())
    LogWarning("event=reservation_not_returned job={} rank={} error=\"{}\"", settings_.options.job,
               settings_.options.rank, left.message());
  return status;
}

}  // namespace

Result<DaemonLinks> JoinRack(const JoinSettings& settings, Connector& connector,
                             CallWaiter& waiter) {
  return Joining(settings, connector, waiter).Run();
}

v1::LeaveRequest LeaveRequestOf(const DaemonLink& link, const std::string& verdict) {
  v1::LeaveRequest request;
  request.set_session_id(link.joined.session_id());
  request.set_verdict(verdict);
  return request;
}

Status LeaveRack(const DaemonLinks& links, DurationNs timeout, CallWaiter& waiter,
                 const std::string& verdict, bool run_is_over) {
  const auto left = waiter.AwaitAll<v1::LeaveResponse>(links.size(), [&](std::size_t i, auto done) {
    v1::LeaveRequest request = LeaveRequestOf(*links[i], verdict);
    request.set_run_is_over(run_is_over);
    links[i]->channel->Call<rpc::Leave>(request, timeout, std::move(done));
  });
  for (std::size_t i = 0; i < links.size(); ++i)
    if (!left[i].ok()) return NamedCallStatus("Leave", links[i]->endpoint, left[i].status());
  return Status();
}

}  // namespace phub::client
