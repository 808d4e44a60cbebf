#include "client/session/job_state.h"

#include <fmt/core.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "client/session/fault_text.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "common/transport/tcp/tcp_dial.h"

namespace phub::client {
namespace {

constexpr std::size_t kSessionIdBytes = 16;

std::string HostName() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

}  // namespace

// ---- Joining -----------------------------------------------------------------------------------

JobState::JobState(JobSettings settings, std::unique_ptr<ControlChannel> channel)
    : settings_(std::move(settings)), channel_(std::move(channel)) {}

JobState::~JobState() { PHUB_CHECK(!watcher_.joinable(), "job={}", name()); }

Result<std::shared_ptr<JobState>> JobState::Join(JobSettings settings,
                                                 std::unique_ptr<ControlChannel> channel) {
  std::shared_ptr<JobState> job(new JobState(std::move(settings), std::move(channel)));
  Status status = job->JoinDaemon();
  if (status.ok()) {
    job->StartThreads();
    status = job->OpenLanes();
    // A verdict that came meanwhile says more than a lane that could not be opened because of it.
    if (const Status verdict = job->status(); !verdict.ok()) status = verdict;
  }
  if (status.ok()) return job;
  job->Shutdown(status);
  return status;
}

Status JobState::JoinDaemon() {
  const JobOptions& options = settings_.options;
  v1::JoinRequest request;
  request.set_protocol_version_min(kProtocolVersionMin);
  request.set_protocol_version_max(kProtocolVersionMax);
  request.set_client_version(Version());
  request.set_tenant(settings_.tenant);
  request.set_job(options.job);
  request.set_rank(options.rank);
  request.mutable_options()->set_world_size(options.world_size);
  request.mutable_options()->set_chunk_bytes(options.chunk_bytes);
  request.mutable_options()->set_staging_bytes_per_lane(options.staging_bytes);
  request.mutable_options()->set_on_loss(v1::LOSS_POLICY_FAIL);
  request.set_host(HostName());
  request.set_pid(static_cast<std::uint32_t>(getpid()));
  auto response = Await<v1::JoinResponse>(
      [&](auto done) { channel_->Join(request, call_timeout_ns(), std::move(done)); });
  if (!response.ok()) return FromCall("Join", response.status());
  joined_ = *std::move(response);
  return CheckJoined();
}

// What the daemon answered sizes our tables, so it is bounded before it is used.
Status JobState::CheckJoined() const {
  const auto bad = [this](const std::string& what) {
    return Status(StatusCode::kInternal,
                  fmt::format("daemon {} (version {}) answered Join with {}",
                              settings_.daemon.ToString(), joined_.daemon_version(), what));
  };
  const std::uint32_t version = joined_.protocol_version();
  if (version < kProtocolVersionMin || version > kProtocolVersionMax)
    return bad(fmt::format("protocol version {}, this library speaks {} to {}", version,
                           kProtocolVersionMin, kProtocolVersionMax));
  if (joined_.session_id().size() != kSessionIdBytes) return bad("a session id of a wrong size");
  const std::uint32_t chunk_bytes = joined_.chunk_bytes();
  if (chunk_bytes < kChunkBytesMin || chunk_bytes > kChunkBytesMax || chunk_bytes % 64 != 0)
    return bad(fmt::format("chunks of {} bytes", chunk_bytes));
  if (joined_.slots_per_lane() < 1 || joined_.slots_per_lane() > kSlotsPerLaneMax)
    return bad(fmt::format("{} slots per lane", joined_.slots_per_lane()));
  if (joined_.liveness_timeout_ns() <= 0) return bad("no liveness timeout");
  if (joined_.cores().empty()) return bad("no core loops");
  for (const v1::CoreEndpoint& core : joined_.cores())
    if (core.port() == 0 || core.port() > UINT16_MAX)
      return bad(fmt::format("port {} for core {}", core.port(), core.core()));
  return Status();
}

void JobState::StartThreads() {
  std::vector<CoreIndex> cores;
  for (const v1::CoreEndpoint& core : joined_.cores()) cores.push_back(CoreIndex{core.core()});
  const auto lane_count = static_cast<std::uint32_t>(cores.size());
  layout_ = std::make_unique<LaneLayout>(joined_.chunk_bytes(), std::move(cores));
  engine_ = std::make_unique<EngineThread>(
      EngineConfig{.incarnation = Incarnation{joined_.incarnation()},
                   .membership_epoch = MembershipEpoch{joined_.membership_epoch()},
                   .slots_per_lane = joined_.slots_per_lane(),
                   .lane_count = lane_count},
      clock_, *this);
  last_heard_.store(clock_.Now(), std::memory_order_relaxed);
  channel_->Attend(*this);
  watcher_ = std::thread([this] { Watch(); });
}

Status JobState::OpenLanes() {
  v1::OpenLanesRequest request;
  request.set_session_id(joined_.session_id());
  auto response = Await<v1::OpenLanesResponse>(
      [&](auto done) { channel_->OpenLanes(request, call_timeout_ns(), std::move(done)); });
  if (!response.ok()) return FromCall("OpenLanes", response.status());
  for (int lane = 0; lane < joined_.cores_size(); ++lane) {
    const v1::CoreEndpoint& core = joined_.cores(lane);
    const auto grant =
        std::find_if(response->grants().begin(), response->grants().end(),
                     [&](const v1::LaneGrant& one) { return one.core() == core.core(); });
    wire::LaneHello hello;
    if (grant == response->grants().end() || grant->nonce().size() != hello.nonce.size())
      return Status(StatusCode::kInternal, fmt::format("daemon {} granted no lane to core {}",
                                                       settings_.daemon.ToString(), core.core()));
    std::transform(grant->nonce().begin(), grant->nonce().end(), hello.nonce.begin(),
                   [](char c) { return static_cast<std::byte>(c); });
    hello.core = CoreIndex{core.core()};
    hello.rank = Rank{rank()};
    hello.incarnation = Incarnation{joined_.incarnation()};
    hello.membership_epoch = MembershipEpoch{joined_.membership_epoch()};
    auto connection =
        transport::DialTcp(core.host().empty() ? settings_.daemon.host : core.host(),
                           static_cast<std::uint16_t>(core.port()), hello, call_timeout_ns());
    if (!connection.ok()) return FromCall("opening a lane", connection.status());
    connections_.push_back(*std::move(connection));
    Submit({.kind = Command::Kind::kAttachLane,
            .lane = static_cast<std::uint32_t>(lane),
            .connection = connections_.back().get()});
  }
  return Status();
}

// ---- Living ------------------------------------------------------------------------------------

Status JobState::status() const {
  if (!failed_.load(std::memory_order_acquire)) return Status();
  const std::lock_guard lock(mutex_);
  return verdict_;
}

std::string JobState::verdict_key() const {
  const std::lock_guard lock(mutex_);
  return verdict_key_;
}

Status JobState::FromCall(const char* call, const absl::Status& status) const {
  // The job's end explains more than the call that it cut short.
  if (Status verdict = this->status(); !verdict.ok()) return verdict;
  return CallStatus(call, settings_.daemon, status);
}

DurationNs JobState::call_timeout_ns() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(settings_.call_timeout).count();
}

Status JobState::Barrier() {
  if (Status verdict = status(); !verdict.ok()) return verdict;
  v1::BarrierRequest request;
  request.set_session_id(joined_.session_id());
  request.set_sequence(next_barrier_.fetch_add(1));
  auto response = Await<v1::BarrierResponse>(
      [&](auto done) { channel_->Barrier(request, /*timeout=*/0, std::move(done)); });
  if (!response.ok()) return FromCall("Barrier", response.status());
  return Status();
}

void JobState::Watch() {
  pthread_setname_np(pthread_self(), "phub-heartbeat");
  const DurationNs interval = std::max<DurationNs>(joined_.liveness_timeout_ns() / 4, 1);
  v1::Heartbeat heartbeat;
  heartbeat.set_session_id(joined_.session_id());
  std::uint64_t sequence = 0;
  TimeNs next_heartbeat = clock_.Now();
  TimeNs last_looked = next_heartbeat;
  std::unique_lock lock(mutex_);
  while (!quit_) {
    lock.unlock();
    const TimeNs now = clock_.Now();
    // When this process itself stood still, the daemon's silence in that time means nothing.
    if (now - last_looked > 2 * interval) last_heard_.store(now, std::memory_order_relaxed);
    last_looked = now;
    if (now >= next_heartbeat) {
      heartbeat.set_sequence(++sequence);
      channel_->SendHeartbeat(heartbeat);
      next_heartbeat = now + interval;
    }
    const DurationNs quiet = std::min(CheckLiveness(now), next_heartbeat - now);
    lock.lock();
    if (!quit_) changed_.wait_for(lock, std::chrono::nanoseconds(quiet));
  }
}

DurationNs JobState::CheckLiveness(TimeNs now) {
  const DurationNs timeout = joined_.liveness_timeout_ns();
  if (failed_.load(std::memory_order_acquire) || leaving_.load(std::memory_order_acquire))
    return timeout;
  DurationNs left = last_heard_.load(std::memory_order_relaxed) + timeout - now;
  Status verdict;
  if (left <= 0) {
    verdict = DaemonSilent(settings_.daemon, timeout - left, name(), rank());
  } else {
    const std::lock_guard lock(mutex_);
    if (lane_lost_at_ != 0) {
      // The control stream may say who is to blame, if the daemon lives.
      const bool certain = lane_lost_.code() == StatusCode::kInternal;
      const DurationNs lane_left = certain ? 0 : lane_lost_at_ + timeout - now;
      left = std::min(left, lane_left);
      if (lane_left <= 0) verdict = lane_lost_;
    }
  }
  if (verdict.ok()) return left;
  Fail(std::move(verdict));
  return timeout;
}

void JobState::OnEvent(const v1::SessionEvent& event) {
  last_heard_.store(clock_.Now(), std::memory_order_relaxed);
  switch (event.event_case()) {
    case v1::SessionEvent::kJobFailed:
      Fail(FaultStatus(event.job_failed().fault()), event.job_failed().fault().key());
      break;
    case v1::SessionEvent::kDraining:
      LogWarning("event=daemon_draining daemon={} job={} rank={}", settings_.daemon.ToString(),
                 name(), rank());
      break;
    case v1::SessionEvent::kHeartbeat:
    case v1::SessionEvent::EVENT_NOT_SET:  // a newer daemon says what this build does not know
      break;
  }
}

void JobState::OnAttendClosed(const absl::Status& status) {
  if (leaving_.load(std::memory_order_acquire)) return;
  Fail(StreamLost(settings_.daemon, status, name(), rank()));
}

void JobState::OnLaneClosed(const LaneClosed& closed) {
  if (leaving_.load(std::memory_order_acquire) || failed_.load(std::memory_order_acquire)) return;
  const std::uint32_t core = joined_.cores(static_cast<int>(closed.lane)).core();
  const std::lock_guard lock(mutex_);
  if (lane_lost_at_ != 0) return;
  lane_lost_at_ = clock_.Now();
  lane_lost_ = LaneLost(settings_.daemon, core, closed, name(), rank());
  changed_.notify_all();  // the watching thread counts from now
}

// ---- Ending ------------------------------------------------------------------------------------

void JobState::Fail(Status verdict, std::string key) {
  {
    const std::lock_guard lock(mutex_);
    if (!verdict_.ok()) return;
    verdict_ = std::move(verdict);
    verdict_key_ = std::move(key);
    failed_.store(true, std::memory_order_release);
  }
  Submit({.kind = Command::Kind::kStop});
}

void JobState::OnStopped() {
  std::vector<std::shared_ptr<KeyState>> keys;
  {
    const std::lock_guard lock(mutex_);
    ended_.store(true, std::memory_order_seq_cst);
    keys = keys_;
    changed_.notify_all();
  }
  for (const std::shared_ptr<KeyState>& key : keys) key->WakeAll();
}

Status JobState::Drain() {
  const auto deadline = std::chrono::steady_clock::now() + settings_.options.leave_timeout;
  std::vector<std::shared_ptr<KeyState>> keys;
  {
    const std::lock_guard lock(mutex_);
    keys = keys_;
  }
  for (const std::shared_ptr<KeyState>& key : keys)
    if (!key->WaitIdle(deadline) && !ended())
      return Status(
          StatusCode::kDeadlineExceeded,
          fmt::format("rank {} left job {} while iteration {} of key {} was still under way",
                      rank(), name(), key->iteration.load() + 1, key->definition.name));
  return Status();
}

Status JobState::Leave() {
  const std::lock_guard calls(calls_mutex_);
  if (left_) return leave_status_;
  left_ = true;
  leave_status_ = Drain();
  if (status().ok()) {
    const absl::Status left = LeaveDaemon();
    if (!left.ok() && leave_status_.ok()) leave_status_ = FromCall("Leave", left);
  } else if (leave_status_.ok()) {
    leave_status_ = status();
  }
  Shutdown(Status(StatusCode::kCancelled, fmt::format("rank {} left job {}", rank(), name())));
  return leave_status_;
}

absl::Status JobState::LeaveDaemon() {
  leaving_.store(true, std::memory_order_release);
  v1::LeaveRequest request;
  request.set_session_id(joined_.session_id());
  // From here on nobody watches whether the daemon lives, so the call itself has to end in time.
  const DurationNs timeout = std::min(call_timeout_ns(), joined_.liveness_timeout_ns());
  return Await<v1::LeaveResponse>(
             [&](auto done) { channel_->Leave(request, timeout, std::move(done)); })
      .status();
}

// Ends threads and calls, in whatever state the job is. After it keys only hold their memory.
void JobState::Shutdown(Status verdict) {
  const bool was_joined = engine_ != nullptr;
  // Joined, but never handed to the caller: the rank must not stay taken.
  if (was_joined && !leaving_ && status().ok()) LeaveDaemon().IgnoreError();
  if (was_joined) {
    Fail(std::move(verdict));
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended(); });
    quit_ = true;
    changed_.notify_all();
    lock.unlock();
    watcher_.join();
  }
  channel_->Close();
  if (was_joined) engine_->Quit();
  connections_.clear();
  const std::lock_guard lock(mutex_);
  keys_.clear();  // they own this object
}

}  // namespace phub::client
