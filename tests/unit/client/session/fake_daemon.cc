#include "tests/unit/client/session/fake_daemon.h"

#include <array>
#include <chrono>
#include <cstring>
#include <numeric>
#include <utility>

#include "common/base/check.h"

namespace phub::client {

namespace {

std::uint32_t BinCount(const FakeDaemonOptions& options) {
  if (options.rack_cores.empty()) return options.core_count;
  return std::accumulate(options.rack_cores.begin(), options.rack_cores.end(), 0u);
}

}  // namespace

struct FakeDaemon::Lane {
  std::uint32_t core = 0;
  std::unique_ptr<transport::Connection> connection;
  transport::ConnectionId id;
  std::vector<std::byte> staging;
  std::vector<transport::LandingSlot> landing;
};

FakeDaemon::FakeDaemon(const FakeDaemonOptions& options)
    : options_(options),
      layout_(options.chunk_bytes, BinCount(options)),
      chunk_bytes_(options.core_count) {
  std::vector<transport::LaneKind*> others;
  if (options.other_lanes != nullptr) others.push_back(options.other_lanes);
  auto listener = transport::TcpListener::Create({}, *this, clock_, std::move(others));
  PHUB_CHECK(listener.ok());
  listener_ = *std::move(listener);
  lanes_thread_ = std::thread([this] { ServeLanes(); });
}

FakeDaemon::~FakeDaemon() { Die(); }

std::uint32_t FakeDaemon::first_bin() const {
  std::uint32_t bin = 0;
  for (std::uint32_t i = 0; i < options_.position; ++i) bin += options_.rack_cores[i];
  return bin;
}

void FakeDaemon::Die() {
  quit_ = true;
  if (lanes_thread_.joinable()) lanes_thread_.join();
  BreakStream(absl::UnavailableError("Socket closed"));
}

void FakeDaemon::BreakStream(const absl::Status& status) {
  const std::lock_guard lock(mutex_);
  if (end_stream_) end_stream_(status);
  write_event_ = nullptr;
  end_stream_ = nullptr;
}

void FakeDaemon::GiveVerdict(const v1::Fault& fault) {
  v1::SessionEvent event;
  *event.mutable_job_failed()->mutable_fault() = fault;
  Say(event);
}

void FakeDaemon::Say(const v1::SessionEvent& event) {
  std::unique_lock lock(mutex_);
  PHUB_CHECK(attended_.wait_for(lock, std::chrono::seconds(10),
                                [this] { return write_event_ != nullptr; }));
  write_event_(event);
}

void FakeDaemon::RefuseOpenLanes(absl::Status status) {
  const std::lock_guard lock(mutex_);
  lanes_refusal_ = std::move(status);
}
void FakeDaemon::RefuseStreams(absl::Status status) {
  const std::lock_guard lock(mutex_);
  streams_refusal_ = std::move(status);
}
void FakeDaemon::Resume(bool resumed, v1::GetVersionsResponse versions) {
  const std::lock_guard lock(mutex_);
  resumed_ = resumed;
  versions_ = std::move(versions);
}
void FakeDaemon::HaveLoaded(absl::StatusOr<v1::LoadedState> loaded) {
  const std::lock_guard lock(mutex_);
  loaded_ = std::move(loaded);
}

v1::JoinRequest FakeDaemon::join_request() const {
  const std::lock_guard lock(mutex_);
  return join_request_;
}
std::vector<v1::AddKeysRequest> FakeDaemon::add_keys_requests() const {
  const std::lock_guard lock(mutex_);
  return add_keys_requests_;
}
std::vector<wire::HyperParameters> FakeDaemon::records() const {
  const std::lock_guard lock(mutex_);
  return records_;
}
std::vector<wire::Nonce> FakeDaemon::nonces() const {
  const std::lock_guard lock(mutex_);
  return nonces_;
}
std::vector<wire::MessageHeader> FakeDaemon::messages() const {
  const std::lock_guard lock(mutex_);
  return messages_;
}
std::vector<std::uint64_t> FakeDaemon::barriers() const {
  const std::lock_guard lock(mutex_);
  return barriers_;
}
std::string FakeDaemon::last_verdict() const {
  const std::lock_guard lock(mutex_);
  return last_verdict_;
}
std::vector<v1::LoadStateRequest> FakeDaemon::load_requests() const {
  const std::lock_guard lock(mutex_);
  return load_requests_;
}

// ---- Control -----------------------------------------------------------------------------------

absl::Status FakeDaemon::HandleGetRack(v1::Rack& response) {
  response.set_configuration("configuration");
  response.set_state("serving");
  response.set_self(options_.position);
  for (std::uint32_t i = 0; i < options_.rack_cores.size(); ++i) {
    v1::RackDaemon& daemon = *response.add_daemons();
    daemon.set_endpoint("127.0.0.1:" + std::to_string(7700 + i));
    if (i == options_.position) daemon.set_core_count(options_.rack_cores[i]);  // only its own
  }
  return absl::OkStatus();
}

absl::Status FakeDaemon::HandleCommit() {
  if (!commit_refusal_.ok()) return commit_refusal_;
  ++committed_count_;
  return absl::OkStatus();
}

absl::Status FakeDaemon::HandleJoin(const v1::JoinRequest& request, v1::JoinResponse& response) {
  std::this_thread::sleep_for(join_stall_.load());
  if (!join_refusal_.ok()) return join_refusal_;
  const std::lock_guard lock(mutex_);
  join_request_ = request;
  response.set_protocol_version(1);
  response.set_daemon_version("0.0.0-test");
  response.set_session_id(std::string(16, 's'));
  response.set_incarnation(kIncarnation);
  response.set_membership_epoch(1);
  response.set_chunk_bytes(options_.chunk_bytes);
  response.set_slots_per_lane(options_.slots_per_lane);
  response.set_liveness_timeout_ns(options_.liveness_timeout);
  for (std::uint32_t core = 0; core < options_.core_count; ++core) {
    v1::CoreEndpoint& endpoint = *response.add_cores();
    endpoint.set_core(core);
    endpoint.set_port(listener_->port());
  }
  response.set_created(true);
  response.set_movements(options_.movements);
  response.set_collective_keys(options_.collective);
  response.set_removes_keys(options_.collective);
  response.set_resumed(resumed_);
  if (!options_.shared_memory_name.empty()) {
    response.mutable_shared_memory()->set_name(options_.shared_memory_name);
    response.mutable_shared_memory()->set_boot_id(kBootId);
  }
  return absl::OkStatus();
}

absl::Status FakeDaemon::HandleOpenLanes(const v1::OpenLanesRequest& request,
                                         v1::OpenLanesResponse& response) {
  if (forgotten_) return absl::NotFoundError("no such session");
  const std::lock_guard lock(mutex_);
  if (!lanes_refusal_.ok()) return lanes_refusal_;
  response.set_valid_for_ns(options_.nonce_lifetime);
  for (const std::uint32_t core : request.cores()) {
    v1::LaneGrant& grant = *response.add_grants();
    grant.set_core(core);
    grant.set_nonce(std::string(wire::kNonceBytes, static_cast<char>(++grant_count_)));
  }
  return absl::OkStatus();
}

absl::Status FakeDaemon::HandleBarrier(const v1::BarrierRequest& request,
                                       const std::function<bool()>& cancelled) {
  while (hold_barrier_ && !cancelled() && !quit_)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (quit_) return absl::UnavailableError("Socket closed");
  if (cancelled()) return absl::CancelledError("cancelled");
  const std::lock_guard lock(mutex_);
  barriers_.push_back(request.sequence());
  return absl::OkStatus();
}

absl::Status FakeDaemon::HandleLeave(const v1::LeaveRequest& request) {
  if (quit_) return absl::UnavailableError("Socket closed");
  if (forgotten_) return absl::NotFoundError("no such session");
  std::this_thread::sleep_for(leave_stall_.load());
  const std::lock_guard lock(mutex_);
  if (!recorded_verdict_.empty() && !request.verdict().empty())
    return absl::AbortedError(recorded_verdict_);
  last_verdict_ = request.verdict();
  said_run_is_over_ = request.run_is_over();
  ++left_count_;
  return absl::OkStatus();
}

absl::Status FakeDaemon::HandleGetVersions(v1::GetVersionsResponse& response) {
  const std::lock_guard lock(mutex_);
  response = versions_;
  return absl::OkStatus();
}

absl::Status FakeDaemon::HandleLoadState(const v1::LoadStateRequest& request) {
  const std::lock_guard lock(mutex_);
  load_requests_.push_back(request);
  if (request.refusal_code() != 0)
    loaded_ =
        absl::Status(static_cast<absl::StatusCode>(request.refusal_code()), request.refusal());
  return absl::OkStatus();
}

absl::Status FakeDaemon::HandleGetLoadedState(v1::LoadedState& response) {
  const std::lock_guard lock(mutex_);
  if (!loaded_.ok()) return loaded_.status();
  response = *loaded_;
  return absl::OkStatus();
}

void FakeDaemon::HandleHeartbeat(const v1::Heartbeat& heartbeat) {
  if (!answer_heartbeats_) return;
  v1::SessionEvent event;
  event.mutable_heartbeat()->set_sequence(heartbeat.sequence());
  const std::lock_guard lock(mutex_);
  if (write_event_) write_event_(event);
}

absl::Status FakeDaemon::StreamOpened(std::function<void(const v1::SessionEvent&)> write,
                                      std::function<void(const absl::Status&)> end) {
  if (forgotten_) return absl::NotFoundError("no such session");
  if (quit_) return absl::UnavailableError("Connection refused");
  const std::lock_guard lock(mutex_);
  if (!streams_refusal_.ok()) {
    ++refused_streams_;
    return streams_refusal_;
  }
  ++attended_count_;
  write_event_ = std::move(write);
  end_stream_ = std::move(end);
  attended_.notify_all();
  return absl::OkStatus();
}

void FakeDaemon::StreamClosed() {
  const std::lock_guard lock(mutex_);
  write_event_ = nullptr;
  end_stream_ = nullptr;
}

// ---- Lanes -------------------------------------------------------------------------------------

wire::LaneRefusal FakeDaemon::Admit(const wire::LaneHello& hello, std::string_view) {
  {
    const std::lock_guard lock(mutex_);
    nonces_.push_back(hello.nonce);
  }
  return refuse_lanes_ ? wire::LaneRefusal::kNonce : wire::LaneRefusal::kNone;
}

void FakeDaemon::Attach(const wire::LaneHello& hello,
                        std::unique_ptr<transport::Connection> connection, std::string) {
  auto lane = std::make_unique<Lane>();
  ++lane_count_;
  lane->core = hello.core.value;
  lane->connection = std::move(connection);
  lane->staging.resize(std::size_t{options_.slots_per_lane} * options_.chunk_bytes);
  for (std::uint32_t slot = 0; slot < options_.slots_per_lane; ++slot)
    lane->landing.push_back(
        {.data = lane->staging.data() + std::size_t{slot} * options_.chunk_bytes,
         .bytes_max = options_.chunk_bytes});
  lane->id = transport_.Adopt(*lane->connection, lane->landing);
  lanes_.push_back(std::move(lane));
}

void FakeDaemon::ServeLanes() {
  std::array<transport::Completion, 64> completions;
  while (!quit_) {
    const std::size_t count = transport_.Poll(completions);
    for (std::size_t i = 0; i < count; ++i) Take(completions[i]);
    transport_.Release({completions.data(), count});
    if (!hold_replies_) Answer();
    if (const TimeNs now = clock_.Now(); lanes_live_ && now >= next_keep_alive_) {
      next_keep_alive_ = now + kKeepAliveInterval;
      for (const std::unique_ptr<Lane>& lane : lanes_) transport_.SendKeepAlive(lane->id);
    }
    if (close_lanes_.exchange(false))
      for (const std::unique_ptr<Lane>& lane : lanes_) transport_.Close(lane->id);
    if (!lanes_.empty() && close_one_lane_.exchange(false)) transport_.Close(lanes_.front()->id);
    if (count == 0 && !listener_->PollOnce(0))
      std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  for (const std::unique_ptr<Lane>& lane : lanes_) transport_.Close(lane->id);
  while (transport_.Poll(completions) > 0) {
  }
  lanes_.clear();
}

void FakeDaemon::Take(const transport::Completion& completion) {
  if (completion.kind != transport::CompletionKind::kReceived) return;
  const transport::ReceivedMessage& message = *completion.message;
  if (message.header.kind == wire::MessageKind::kKeepAlive) return;
  if (message.header.kind == wire::MessageKind::kHyperParameters) {
    wire::HyperParameters values;
    PHUB_CHECK(wire::DecodeHyperParameters(
        std::span(message.inline_payload).first(wire::kHyperParametersBytes), values));
    const std::lock_guard lock(mutex_);
    records_.push_back(values);
    return;
  }
  if (message.header.kind == wire::MessageKind::kGradient) ++gradient_count_;
  Reply reply{.connection = completion.connection, .header = message.header, .payload = {}};
  const std::lock_guard lock(mutex_);
  messages_.push_back(message.header);
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (lane->id != completion.connection) continue;
    if (message.header.payload_bytes > 0) {
      const std::byte* data = lane->landing[message.header.slot.value].data;
      reply.payload.assign(data, data + message.header.payload_bytes);
    } else {
      reply.payload.resize(chunk_bytes_[lane->core][message.header.chunk.value]);
      for (std::size_t at = 0; at < reply.payload.size(); at += sizeof(kStored))
        std::memcpy(reply.payload.data() + at, &kStored, sizeof(kStored));
    }
  }
  reply.header.payload_bytes = static_cast<std::uint32_t>(reply.payload.size());
  reply.header.kind = wire::MessageKind::kParameters;
  reply.header.slot = SlotIndex{message.header.chunk.value};
  if (break_next_reply_.exchange(false)) reply.header.iteration.value += 7;
  waiting_.push_back(std::move(reply));
}

void FakeDaemon::Answer() {
  while (!waiting_.empty()) {
    Reply& reply = waiting_.front();
    const transport::SendRequest request{
        .header = reply.header, .payload = reply.payload, .connections = {&reply.connection, 1}};
    if (transport_.Post({&request, 1}) == 0) return;
    sent_.push_back(std::move(reply));
    waiting_.pop_front();
  }
}

}  // namespace phub::client
