#include "tests/unit/client/session/fake_daemon.h"

#include <array>
#include <chrono>
#include <utility>

#include "client/layout.h"
#include "common/base/check.h"

namespace phub::client {

struct FakeDaemon::Lane {
  std::unique_ptr<transport::Connection> connection;
  transport::ConnectionId id;
  std::vector<std::byte> staging;
  std::vector<transport::LandingSlot> landing;
};

namespace {

// Calls run on threads of their own, as over gRPC.
class DirectChannel final : public ControlChannel {
 public:
  explicit DirectChannel(FakeDaemon& daemon) : daemon_(daemon) {}
  ~DirectChannel() override { Close(); }

  void Join(const v1::JoinRequest& request, DurationNs, Done<v1::JoinResponse> done) override {
    Call<v1::JoinResponse>(std::move(done), [this, request](v1::JoinResponse& response) {
      return daemon_.HandleJoin(request, response);
    });
  }
  void AddKeys(const v1::AddKeysRequest& request, DurationNs,
               Done<v1::AddKeysResponse> done) override {
    Call<v1::AddKeysResponse>(std::move(done), [this, request](v1::AddKeysResponse& response) {
      return daemon_.HandleAddKeys(request, response);
    });
  }
  void OpenLanes(const v1::OpenLanesRequest&, DurationNs,
                 Done<v1::OpenLanesResponse> done) override {
    Call<v1::OpenLanesResponse>(std::move(done), [this](v1::OpenLanesResponse& response) {
      return daemon_.HandleOpenLanes(response);
    });
  }
  void Barrier(const v1::BarrierRequest&, DurationNs, Done<v1::BarrierResponse> done) override {
    Call<v1::BarrierResponse>(std::move(done), [this](v1::BarrierResponse&) {
      return daemon_.HandleBarrier([this] { return closed_.load(); });
    });
  }
  void Leave(const v1::LeaveRequest&, DurationNs, Done<v1::LeaveResponse> done) override {
    Call<v1::LeaveResponse>(std::move(done),
                            [this](v1::LeaveResponse&) { return daemon_.HandleLeave(); });
  }
  void Attend(Observer& observer) override {
    daemon_.StreamOpened(
        [&observer](const v1::SessionEvent& event) { observer.OnEvent(event); },
        [&observer] { observer.OnAttendClosed(absl::UnavailableError("Socket closed")); });
  }
  void SendHeartbeat(const v1::Heartbeat& heartbeat) override {
    daemon_.HandleHeartbeat(heartbeat);
  }
  void Close() override {
    closed_ = true;
    daemon_.StreamClosed();
    std::vector<std::thread> calls;
    {
      const std::lock_guard lock(mutex_);
      calls.swap(calls_);
    }
    for (std::thread& call : calls) call.join();
  }

 private:
  template <typename Response, typename Handler>
  void Call(Done<Response> done, Handler handler) {
    const std::lock_guard lock(mutex_);
    if (closed_) return done(absl::CancelledError("closed"));
    calls_.emplace_back([done = std::move(done), handler = std::move(handler)] {
      Response response;
      const absl::Status status = handler(response);
      if (status.ok())
        done(std::move(response));
      else
        done(status);
    });
  }

  FakeDaemon& daemon_;
  std::atomic<bool> closed_{false};
  std::mutex mutex_;
  std::vector<std::thread> calls_;
};

}  // namespace

// A Job without a Session.
struct JobAccess {
  static Job Make(std::shared_ptr<JobState> state) { return Job(std::move(state)); }
};

FakeDaemon::FakeDaemon(const FakeDaemonOptions& options) : options_(options) {
  auto listener = transport::TcpListener::Create({}, *this, clock_);
  PHUB_CHECK(listener.ok());
  listener_ = *std::move(listener);
  lanes_thread_ = std::thread([this] { ServeLanes(); });
}

FakeDaemon::~FakeDaemon() { Die(); }

Result<Job> FakeDaemon::Join(JobOptions options, std::chrono::milliseconds call_timeout) {
  auto state = JobState::Join({.daemon = *ParseEndpoint(kName),
                               .call_timeout = call_timeout,
                               .options = std::move(options)},
                              std::make_unique<DirectChannel>(*this));
  if (!state.ok()) return state.status();
  return JobAccess::Make(*std::move(state));
}

void FakeDaemon::Die() {
  quit_ = true;
  if (lanes_thread_.joinable()) lanes_thread_.join();
  const std::lock_guard lock(mutex_);
  if (die_) die_();
  write_event_ = nullptr;
  die_ = nullptr;
}

void FakeDaemon::GiveVerdict(const v1::Fault& fault) {
  v1::SessionEvent event;
  *event.mutable_job_failed()->mutable_fault() = fault;
  std::unique_lock lock(mutex_);
  PHUB_CHECK(attended_.wait_for(lock, std::chrono::seconds(10),
                                [this] { return write_event_ != nullptr; }));
  write_event_(event);
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

// ---- Control -----------------------------------------------------------------------------------

absl::Status FakeDaemon::HandleJoin(const v1::JoinRequest& request, v1::JoinResponse& response) {
  std::this_thread::sleep_for(join_stall_.load());
  if (!join_refusal_.ok()) return join_refusal_;
  const std::lock_guard lock(mutex_);
  join_request_ = request;
  response.set_protocol_version(1);
  response.set_daemon_version("0.0.0-test");
  response.set_session_id(std::string(16, 's'));
  response.set_incarnation(0x1122334455667788);
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
  return absl::OkStatus();
}

absl::Status FakeDaemon::HandleAddKeys(const v1::AddKeysRequest& request,
                                       v1::AddKeysResponse& response) {
  const std::lock_guard lock(mutex_);
  add_keys_requests_.push_back(request);
  for (const v1::KeySpec& key : request.keys()) {
    v1::KeyPlacement& placement = *response.add_placements();
    placement.set_key_index(key_count_++);
    const std::uint64_t chunks = ChunkCount(key.element_count() * 4, options_.chunk_bytes);
    for (std::uint64_t c = 0; c < chunks; ++c)
      placement.add_chunk_cores(static_cast<std::uint32_t>(c % options_.core_count));
  }
  return absl::OkStatus();
}

absl::Status FakeDaemon::HandleOpenLanes(v1::OpenLanesResponse& response) {
  for (std::uint32_t core = 0; core < options_.core_count; ++core) {
    v1::LaneGrant& grant = *response.add_grants();
    grant.set_core(core);
    grant.set_nonce(std::string(wire::kNonceBytes, 'n'));
  }
  return absl::OkStatus();
}

absl::Status FakeDaemon::HandleBarrier(const std::function<bool()>& cancelled) {
  while (hold_barrier_ && !cancelled() && !quit_)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (quit_) return absl::UnavailableError("Socket closed");
  return absl::OkStatus();
}

absl::Status FakeDaemon::HandleLeave() {
  ++left_count_;
  return absl::OkStatus();
}

void FakeDaemon::HandleHeartbeat(const v1::Heartbeat& heartbeat) {
  if (!answer_heartbeats_) return;
  v1::SessionEvent event;
  event.mutable_heartbeat()->set_sequence(heartbeat.sequence());
  const std::lock_guard lock(mutex_);
  if (write_event_) write_event_(event);
}

void FakeDaemon::StreamOpened(std::function<void(const v1::SessionEvent&)> write,
                              std::function<void()> die) {
  const std::lock_guard lock(mutex_);
  write_event_ = std::move(write);
  die_ = std::move(die);
  attended_.notify_all();
}

void FakeDaemon::StreamClosed() {
  const std::lock_guard lock(mutex_);
  write_event_ = nullptr;
  die_ = nullptr;
}

// ---- Lanes -------------------------------------------------------------------------------------

wire::LaneRefusal FakeDaemon::Admit(const wire::LaneHello&, std::string_view) {
  return refuse_lanes_ ? wire::LaneRefusal::kNonce : wire::LaneRefusal::kNone;
}

void FakeDaemon::Attach(const wire::LaneHello&, std::unique_ptr<transport::Connection> connection,
                        std::string) {
  auto lane = std::make_unique<Lane>();
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
    if (close_lanes_.exchange(false))
      for (const std::unique_ptr<Lane>& lane : lanes_) transport_.Close(lane->id);
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
  if (message.header.kind == wire::MessageKind::kRecord) {
    wire::HyperParameters values;
    PHUB_CHECK(wire::DecodeHyperParameters(
        std::span(message.inline_payload).first(wire::kHyperParametersBytes), values));
    const std::lock_guard lock(mutex_);
    records_.push_back(values);
    return;
  }
  ++gradient_count_;
  Reply reply{.connection = completion.connection, .header = message.header, .payload = {}};
  for (const std::unique_ptr<Lane>& lane : lanes_)
    if (lane->id == completion.connection) {
      const std::byte* data = lane->landing[message.header.slot.value].data;
      reply.payload.assign(data, data + message.header.payload_bytes);
    }
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
