#include "server/verbs_devices.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "absl/strings/str_split.h"
#include "common/base/log.h"
#include "common/base/status_text.h"
#include "server/config/setting_kind.h"

namespace phub::server {
namespace {

// Room for some hundred lanes of a core loop; devices may have less.
constexpr std::uint32_t kQueueEntries = 1u << 16;

using Devices = std::vector<std::shared_ptr<const transport::VerbsDevice>>;

// Where workers reach this daemon, if the settings say: the address of that subnet is chosen.
std::optional<transport::Gid> OwnAddress(const Settings& settings) {
  const std::string& text = settings.data_listen.empty() ? settings.listen : settings.data_listen;
  const auto address = ParseHostAndPort(text);
  return address.ok() ? transport::ParseGid(address->host) : std::nullopt;
}

absl::StatusOr<Devices> OpenDevices(const Settings& settings) {
  const bool named = !settings.verbs_devices.empty();
  std::vector<std::string> names;
  if (named) {
    names = absl::StrSplit(settings.verbs_devices, ',');
  } else {
    names = transport::VerbsDevice::Names();
  }
  Devices devices;
  absl::Status last = absl::NotFoundError("this host has no RDMA device");
  for (const std::string& name : names) {
    auto device = transport::VerbsDevice::Open({.name = name, .peer = OwnAddress(settings)});
    if (device.ok() && !(*device)->limits().windows) {
      device = absl::FailedPreconditionError(
          fmt::format("RDMA device {} has no memory windows of type 2, so it cannot keep ranks of "
                      "a job apart",
                      name));
    }
    if (device.ok()) {
      devices.push_back(*std::move(device));
      continue;
    }
    last = device.status();
    if (named) return last;
    LogInfo("event=verbs_device_unused device={} reason=\"{}\"", name, MessageOf(last));
  }
  if (devices.empty() && settings.verbs == VerbsMode::kOn) return last;
  return devices;
}

}  // namespace

transport::VerbsLimits VerbsLimitsOf(const Settings& settings) {
  transport::VerbsLimits limits;
  limits.ack_timeout = transport::AckTimeoutFor(settings.verbs_ack_timeout);
  return limits;
}

absl::StatusOr<VerbsQueues> OpenVerbsQueues(const Settings& settings, std::size_t core_loops) {
  if (settings.verbs == VerbsMode::kOff) return VerbsQueues{};
  const auto failed = [](const absl::Status& status) {
    return absl::Status(
        status.code(),
        fmt::format("lanes over RDMA (verbs; --verbs off does without): {}", MessageOf(status)));
  };
  const absl::StatusOr<Devices> devices = OpenDevices(settings);
  if (!devices.ok()) return failed(devices.status());
  VerbsQueues queues;
  for (std::size_t core = 0; core < core_loops && !devices->empty(); ++core) {
    const auto& device = (*devices)[core % devices->size()];
    auto queue = transport::VerbsQueue::Create(device, kQueueEntries);
    if (!queue.ok()) return failed(queue.status());
    queues.push_back(*std::move(queue));
    LogInfo("event=verbs_device core={} device={} port={} gid={} gid_index={} reason=\"{}\" mtu={}",
            core, device->name(), device->port(), transport::GidText(device->gid().gid),
            device->gid().index, device->gid_reason(), 128 << device->mtu());
  }
  return queues;
}

}  // namespace phub::server
