#include "server/control/rack_relay.h"

#include <fmt/format.h>

namespace phub::server {

RackRelay::RackRelay(ControlThread& control, std::vector<std::string> racks,
                     PeerCredentials credentials)
    : control_(control), racks_(std::move(racks)), credentials_(std::move(credentials)) {}

RackRelay::~RackRelay() { Stop(); }

absl::Status RackRelay::Start() {
  const auto credentials = MakePeerCredentials(credentials_);
  if (!credentials.ok()) return credentials.status();
  for (const std::string& rack : racks_) {
    const std::shared_ptr<grpc::Channel> channel = MakePeerChannel(rack, *credentials);
    stubs_.push_back({v1::Admin::NewStub(channel), v1::Session::NewStub(channel)});
  }
  return absl::OkStatus();
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

absl::Status RackRelay::SaidBy(RackIndex rack, const grpc::Status& status) const {
  if (status.ok()) return absl::OkStatus();
  const std::string who = fmt::format("rack {} ({})", rack.value, racks_[rack.value]);
  switch (status.error_code()) {
    // Who asked reached this daemon: "unavailable" would tell him that he did not.
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return absl::AbortedError(fmt::format("{} does not answer: {}", who, status.error_message()));
    case grpc::StatusCode::UNIMPLEMENTED:
      return absl::FailedPreconditionError(fmt::format(
          "the phubd of {} is older than this one; upgrade it: {}", who, status.error_message()));
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
      return absl::FailedPreconditionError(fmt::format(
          "{} does not take this daemon for one of its racks: {}", who, status.error_message()));
    default:
      return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                          fmt::format("{}: {}", who, status.error_message()));
  }
}

}  // namespace phub::server
