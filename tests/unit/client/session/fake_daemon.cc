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

FakeDaemon::FakeDaemon(const FakeDaemonOptions& options) : options_(options) {
  auto listener = transport::TcpListener::Create({}, *this, clock_);
  PHUB_CHECK(listener.ok());
  listener_ = *std::move(listener);
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &control_port_);
  builder.RegisterService(static_cast<v1::Session::Service*>(this));
  server_ = builder.BuildAndStart();
  PHUB_CHECK(server_ != nullptr && control_port_ != 0);
  lanes_thread_ = std::thread([this] { ServeLanes(); });
}

FakeDaemon::~FakeDaemon() { Die(); }

void FakeDaemon::Die() {
  quit_ = true;
  if (lanes_thread_.joinable()) lanes_thread_.join();
  if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
}

void FakeDaemon::GiveVerdict(const v1::Fault& fault) {
  v1::SessionEvent event;
  *event.mutable_job_failed()->mutable_fault() = fault;
  const std::lock_guard lock(mutex_);
  PHUB_CHECK(stream_ != nullptr);
  stream_->Write(event);
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

grpc::Status FakeDaemon::Join(grpc::ServerContext*, const v1::JoinRequest* request,
                              v1::JoinResponse* response) {
  if (!join_refusal_.ok()) return join_refusal_;
  const std::lock_guard lock(mutex_);
  join_request_ = *request;
  response->set_protocol_version(1);
  response->set_daemon_version("0.0.0-test");
  response->set_session_id(std::string(16, 's'));
  response->set_incarnation(0x1122334455667788);
  response->set_membership_epoch(1);
  response->set_chunk_bytes(options_.chunk_bytes);
  response->set_slots_per_lane(options_.slots_per_lane);
  response->set_liveness_timeout_ns(options_.liveness_timeout);
  for (std::uint32_t core = 0; core < options_.core_count; ++core) {
    v1::CoreEndpoint& endpoint = *response->add_cores();
    endpoint.set_core(core);
    endpoint.set_port(listener_->port());
  }
  response->set_created(true);
  return grpc::Status::OK;
}

grpc::Status FakeDaemon::AddKeys(grpc::ServerContext*, const v1::AddKeysRequest* request,
                                 v1::AddKeysResponse* response) {
  const std::lock_guard lock(mutex_);
  add_keys_requests_.push_back(*request);
  for (const v1::KeySpec& key : request->keys()) {
    v1::KeyPlacement& placement = *response->add_placements();
    placement.set_key_index(key_count_++);
    const std::uint64_t chunks = ChunkCount(key.element_count() * 4, options_.chunk_bytes);
    for (std::uint64_t c = 0; c < chunks; ++c)
      placement.add_chunk_cores(static_cast<std::uint32_t>(c % options_.core_count));
  }
  return grpc::Status::OK;
}

grpc::Status FakeDaemon::OpenLanes(grpc::ServerContext*, const v1::OpenLanesRequest*,
                                   v1::OpenLanesResponse* response) {
  for (std::uint32_t core = 0; core < options_.core_count; ++core) {
    v1::LaneGrant& grant = *response->add_grants();
    grant.set_core(core);
    grant.set_nonce(std::string(wire::kNonceBytes, 'n'));
  }
  return grpc::Status::OK;
}

grpc::Status FakeDaemon::Barrier(grpc::ServerContext* context, const v1::BarrierRequest*,
                                 v1::BarrierResponse*) {
  while (hold_barrier_ && !context->IsCancelled() && !quit_)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return grpc::Status::OK;
}

grpc::Status FakeDaemon::Attend(grpc::ServerContext*,
                                grpc::ServerReaderWriter<v1::SessionEvent, v1::Heartbeat>* stream) {
  {
    const std::lock_guard lock(mutex_);
    stream_ = stream;
  }
  v1::Heartbeat heartbeat;
  while (stream->Read(&heartbeat)) {
    if (!answer_heartbeats_) continue;
    v1::SessionEvent event;
    event.mutable_heartbeat()->set_sequence(heartbeat.sequence());
    const std::lock_guard lock(mutex_);
    stream->Write(event);
  }
  const std::lock_guard lock(mutex_);
  stream_ = nullptr;
  return grpc::Status::OK;
}

grpc::Status FakeDaemon::Leave(grpc::ServerContext*, const v1::LeaveRequest*, v1::LeaveResponse*) {
  ++left_count_;
  return grpc::Status::OK;
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
