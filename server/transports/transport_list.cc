#include "server/transports/transport_list.h"

#include <utility>

#include "common/base/check.h"

namespace phub::server {

absl::StatusOr<TransportList> TransportList::Open(const DaemonLanesContext& context) {
  TransportList list;
  LaneTransports absent;
  for (const DaemonLaneProvider& provider : DaemonLaneProviders()) {
    absl::StatusOr<OpenedLanes> opened = provider.open(context);
    if (!opened.ok()) return opened.status();
    PHUB_CHECK(opened->description.name == provider.name, "name={}", opened->description.name);
    if (opened->lanes == nullptr) {
      absent.push_back(std::move(opened->description));
      continue;
    }
    list.descriptions_.push_back(std::move(opened->description));
    list.served_.push_back(std::move(opened->lanes));
  }
  for (LaneTransport& each : absent) list.descriptions_.push_back(std::move(each));
  return list;
}

bool TransportList::Serves(std::string_view name) const {
  for (std::size_t i = 0; i < served_.size(); ++i)
    if (descriptions_[i].name == name) return true;
  return false;
}

absl::StatusOr<std::vector<std::unique_ptr<transport::Transport>>> TransportList::MakeTransports(
    CoreIndex core) {
  std::vector<std::unique_ptr<transport::Transport>> transports;
  for (const auto& lanes : served_) {
    auto transport = lanes->MakeTransport(core);
    if (!transport.ok()) return transport.status();
    transports.push_back(*std::move(transport));
  }
  return transports;
}

void TransportList::Connect(ControlThread& thread, Control& control) {
  for (std::size_t i = 0; i < served_.size(); ++i)
    served_[i]->Connect(thread, control, static_cast<std::uint8_t>(i));
}

std::vector<transport::LaneKind*> TransportList::LaneKinds() {
  std::vector<transport::LaneKind*> kinds;
  for (const auto& lanes : served_)
    if (transport::LaneKind* const kind = lanes->lane_kind()) kinds.push_back(kind);
  return kinds;
}

std::vector<PeerLaneDialer*> TransportList::PeerDialers() {
  std::vector<PeerLaneDialer*> dialers;
  for (const auto& lanes : served_) dialers.push_back(lanes->peer_dialer());
  return dialers;
}

absl::Status TransportList::Start() {
  for (const auto& lanes : served_)
    if (absl::Status status = lanes->Start(); !status.ok()) return status;
  return absl::OkStatus();
}

void TransportList::Stop() {
  for (const auto& lanes : served_) lanes->Stop();
}

}  // namespace phub::server
