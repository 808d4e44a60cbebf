#include "server/transports/verbs/verbs_devices.h"

#include <fmt/format.h>

#include <map>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/status_text.h"
#include "common/net/host_port.h"
#include "common/transport/verbs/device_list.h"
#include "server/config/setting_kind.h"

namespace phub::server {
namespace {

// Enough for several hundred lanes of a core loop; devices may support less.
constexpr std::uint32_t kQueueEntries = 1u << 16;

using Devices = std::vector<std::shared_ptr<const transport::VerbsDevice>>;

// The address that workers connect to, if the settings have one. The device's GID in the same
// subnet is preferred.
std::optional<transport::Gid> OwnAddress(const Settings& settings) {
  const std::string& text = settings.data_listen.empty() ? settings.listen : settings.data_listen;
  const auto address = net::ParseHostAndPort(text);
  return address.ok() ? transport::ParseGid(address->host) : std::nullopt;
}

bool PeersNeedVerbs(const Settings& settings) {
  return !settings.racks.empty() && settings.peer_transport == PeerTransport::kVerbs;
}

absl::StatusOr<Devices> OpenDevices(const Settings& settings) {
  const bool named = !settings.verbs_devices.empty();
  std::vector<transport::VerbsDeviceOptions> wanted;
  if (named) {
    auto listed = transport::ParseVerbsDevices(settings.verbs_devices);
    if (!listed.ok()) return listed.status();
    wanted = *std::move(listed);
  } else {
    for (std::string& name : transport::VerbsDevice::Names()) {
      wanted.push_back({.name = std::move(name)});
    }
  }
  Devices devices;
  absl::Status last = absl::NotFoundError(transport::VerbsDevice::NoDeviceText());
  for (transport::VerbsDeviceOptions& one : wanted) {
    one.peer = OwnAddress(settings);
    auto device = transport::VerbsDevice::Open(one);
    if (device.ok() && !(*device)->limits().windows) {
      device = absl::FailedPreconditionError(fmt::format(
          "RDMA device {} has no memory windows of type 2, which phubd needs to isolate "
          "the ranks of a job",
          one.name));
    }
    if (device.ok()) {
      devices.push_back(*std::move(device));
      continue;
    }
    last = device.status();
    if (named) return last;
    LogInfo("event=verbs_device_unused device={} reason=\"{}\"", one.name, MessageOf(last));
  }
  if (devices.empty() && (settings.verbs == VerbsMode::kOn || PeersNeedVerbs(settings)))
    return last;
  return devices;
}

}  // namespace

transport::VerbsLimits VerbsLimitsOf(const Settings& settings) {
  transport::VerbsLimits limits;
  limits.ack_timeout = transport::AckTimeoutFor(settings.verbs_ack_timeout);
  return limits;
}

std::vector<std::size_t> AssignDevices(const NumaNodes& core_nodes, const NumaNodes& device_nodes) {
  PHUB_CHECK(!device_nodes.empty());
  std::vector<std::size_t> assigned;
  std::map<std::optional<std::uint32_t>, std::size_t> turns;  // [node]: loops assigned so far
  for (const std::optional<std::uint32_t>& node : core_nodes) {
    std::vector<std::size_t> near;
    for (std::size_t i = 0; i < device_nodes.size(); ++i) {
      if (node && device_nodes[i] == node) near.push_back(i);
    }
    const std::size_t turn = turns[near.empty() ? std::nullopt : node]++;
    assigned.push_back(near.empty() ? turn % device_nodes.size() : near[turn % near.size()]);
  }
  return assigned;
}

absl::StatusOr<VerbsQueues> OpenVerbsQueues(const Settings& settings, const NumaNodes& core_nodes) {
  if (settings.verbs == VerbsMode::kOff && PeersNeedVerbs(settings)) {
    return absl::InvalidArgumentError(
        "peer_transport = verbs needs RDMA, but verbs = off; set one of them to auto");
  }
  if (settings.verbs == VerbsMode::kOff) return VerbsQueues{};
  const auto failed = [](const absl::Status& status) {
    return absl::Status(status.code(),
                        fmt::format("lanes over RDMA (verbs; disable them with --verbs off): {}",
                                    MessageOf(status)));
  };
  const absl::StatusOr<Devices> devices = OpenDevices(settings);
  if (!devices.ok()) return failed(devices.status());
  if (devices->empty()) return VerbsQueues{};
  NumaNodes device_nodes;
  for (const auto& device : *devices) device_nodes.push_back(device->numa_node());
  const std::vector<std::size_t> assigned = AssignDevices(core_nodes, device_nodes);
  VerbsQueues queues;
  for (std::size_t core = 0; core < core_nodes.size(); ++core) {
    const auto& device = (*devices)[assigned[core]];
    auto queue = transport::VerbsQueue::Create(device, kQueueEntries);
    if (!queue.ok()) return failed(queue.status());
    queues.push_back(*std::move(queue));
    LogInfo(
        "event=verbs_device core={} device={} port={} gid={} gid_index={} reason=\"{}\" mtu={} "
        "numa_node={}",
        core, device->name(), device->port(), transport::GidText(device->gid().gid),
        device->gid().index, device->gid_reason(), 128 << device->mtu(),
        device->numa_node() ? fmt::format("{}", *device->numa_node()) : "unknown");
  }
  return queues;
}

}  // namespace phub::server
