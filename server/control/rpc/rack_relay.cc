#include "server/control/rpc/rack_relay.h"

#include <fmt/format.h>

namespace phub::server {

RackRelay::RackRelay(ControlThread& control, std::vector<std::string> racks,
                     PeerCredentials credentials)
    : control_(control), files_(std::move(credentials)), racks_(std::move(racks)) {}

RackRelay::~RackRelay() { Stop(); }

absl::Status RackRelay::Start() {
  auto credentials = MakePeerCredentials(files_);
  if (!credentials.ok()) return credentials.status();
  credentials_ = *std::move(credentials);
  const std::lock_guard lock(mutex_);
  for (std::uint32_t rack = 0; rack < racks_.size(); ++rack) {
    stubs_.push_back(Connect(RackIndex{rack}));
  }
  return absl::OkStatus();
}

RackRelay::Stubs RackRelay::Connect(RackIndex rack) const {
  const std::shared_ptr<grpc::Channel> channel = MakePeerChannel(racks_[rack.value], credentials_);
  return {v1::Admin::NewStub(channel), v1::Session::NewStub(channel)};
}

void RackRelay::SetEndpoint(RackIndex rack, const std::string& endpoint) {
  const std::lock_guard lock(mutex_);
  racks_[rack.value] = endpoint;
  if (!stubs_.empty()) stubs_[rack.value] = Connect(rack);
}

std::shared_ptr<v1::Admin::Stub> RackRelay::admin(RackIndex rack) {
  const std::lock_guard lock(mutex_);
  return stubs_[rack.value].admin;
}

std::shared_ptr<v1::Session::Stub> RackRelay::session(RackIndex rack) {
  const std::lock_guard lock(mutex_);
  return stubs_[rack.value].session;
}

void RackRelay::Stop() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  for (grpc::ClientContext* const call : calls_) call->TryCancel();
  ended_.wait(lock, [&] { return calls_.empty(); });
}

bool RackRelay::Begin(grpc::ClientContext* call) {
  const std::lock_guard lock(mutex_);
  if (!stopping_) calls_.insert(call);
  return !stopping_;
}

void RackRelay::End(grpc::ClientContext* call) {
  const std::lock_guard lock(mutex_);
  calls_.erase(call);
  ended_.notify_all();
}

absl::Status RackRelay::SaidBy(RackIndex rack, const grpc::Status& status) {
  const std::lock_guard lock(mutex_);
  const std::string who = fmt::format("rack {} ({})", rack.value, racks_[rack.value]);
  if (status.error_code() != grpc::StatusCode::UNAUTHENTICATED) return SaidByPeer(who, status);
  // The connection's certificate has probably expired; a new connection uses the current one.
  stubs_[rack.value] = Connect(rack);
  return absl::AbortedError(
      fmt::format("{} did not accept this daemon's certificate; phubd reconnects, so try again: {}",
                  who, status.error_message()));
}

}  // namespace phub::server
