#include "common/transport/verbs/verbs_side.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <optional>
#include <utility>

#include "common/base/log.h"
#include "common/base/status_text.h"
#include "common/net/address.h"
#include "common/transport/verbs/device_list.h"
#include "common/transport/verbs/verbs_connection.h"
#include "common/transport/verbs/verbs_doctor.h"

namespace phub::transport {
namespace {

// A worker has few lanes, and a queue pair reserves about 450 entries.
constexpr std::uint32_t kQueueEntries = 1u << 15;

// An environment variable, because the choice of devices depends on the host, not on the program.
constexpr const char* kDevicesVariable = "PHUB_VERBS_DEVICES";

absl::StatusOr<std::vector<VerbsDeviceOptions>> DevicesWanted(bool& named) {
  const char* const names = std::getenv(kDevicesVariable);
  named = names != nullptr && *names != '\0';
  if (named) return ParseVerbsDevices(names);
  std::vector<VerbsDeviceOptions> devices;
  for (std::string& name : VerbsDevice::Names()) {
    devices.push_back({.name = std::move(name)});
  }
  return devices;
}

std::optional<Gid> GidOf(const std::string& host) {
  const auto addresses = net::Resolve(host, 0, /*passive=*/false);
  if (!addresses.ok()) return std::nullopt;
  for (const net::SocketAddress& address : *addresses) {
    if (auto gid = ParseGid(net::AddressText(address))) return gid;
  }
  return std::nullopt;
}

// Logs, once for each process, the problems that prevent the use of devices, and how to fix them.
// The size of the keys is not known yet, so it checks for the memory of one lane (phubctl doctor
// has an option for the size). If registering memory fails later, that is logged then.
void LogWhatIsWrong(const std::optional<Gid>& peer) {
  static std::once_flag once;
  std::call_once(once, [&] {
    for (const VerbsFinding& finding :
         JudgeVerbs(ReadVerbsHostFacts(), {.pinned_bytes = VerbsLaneBytes({}), .peer = peer})) {
      if (finding.level != VerbsFinding::Level::kBad) continue;
      LogWarning("event=rdma_not_in_order subject=\"{}\" what=\"{}\" fix=\"{}\"", finding.subject,
                 finding.text, finding.fix);
    }
  });
}

}  // namespace

VerbsSide::VerbsSide(const std::string& daemon_host) {
  const std::optional<Gid> peer = GidOf(daemon_host);
  why_not_ = VerbsDevice::NoDeviceText();
  const auto wanted = DevicesWanted(named_);
  if (!wanted.ok()) {
    why_not_ = fmt::format("{}: {}", kDevicesVariable, MessageOf(wanted.status()));
    return;
  }
  if (!wanted->empty()) LogWhatIsWrong(peer);
  for (VerbsDeviceOptions one : *wanted) {
    one.peer = peer;
    auto device = VerbsDevice::Open(one);
    if (!device.ok()) {
      why_not_ = MessageOf(device.status());
      continue;
    }
    auto queue = VerbsQueue::Create(*std::move(device), kQueueEntries);
    if (queue.ok()) {
      ports_.push_back({.queue = *std::move(queue), .domain = nullptr});
    } else {
      why_not_ = MessageOf(queue.status());
    }
  }
  if (!ports_.empty()) why_not_.clear();
}

std::vector<std::shared_ptr<VerbsQueue>> VerbsSide::queues() const {
  std::vector<std::shared_ptr<VerbsQueue>> queues;
  for (const Port& port : ports_) queues.push_back(port.queue);
  return queues;
}

VerbsSide::Port* VerbsSide::Choose(const std::optional<Gid>& peer, std::uint32_t core,
                                   std::uint32_t attempt) {
  std::vector<Port*> ports;
  for (std::size_t i = 0; i < ports_.size(); ++i) {
    Port& port = ports_[named_ ? (core + i) % ports_.size() : i];
    if (!port.queue->lost()) ports.push_back(&port);
  }
  if (peer) {
    const auto common = [&](const Port* port) {
      return CommonBits(port->queue->device()->gid().gid, *peer);
    };
    std::ranges::stable_sort(ports, std::greater<>(), common);
  }
  return attempt < ports.size() ? ports[attempt] : nullptr;
}

absl::StatusOr<VerbsSide::Way> VerbsSide::WayTo(const std::string& host, std::uint32_t core,
                                                std::uint32_t attempt) {
  if (ports_.empty()) return absl::NotFoundError(why_not_);
  const std::optional<Gid> peer = named_ ? std::nullopt : GidOf(host);
  const std::lock_guard lock(mutex_);
  Port* const best = Choose(peer, core, attempt);
  if (best == nullptr) {
    const auto lost =
        std::ranges::find_if(ports_, [](const Port& port) { return port.queue->lost(); });
    if (lost == ports_.end()) return absl::NotFoundError("this host has no other RDMA device");
    return absl::NotFoundError(fmt::format(
        "RDMA device {} was lost while the job ran (it was unplugged, or its driver was "
        "unloaded or reset); restart the worker when the device is available again",
        lost->queue->device()->name()));
  }
  const std::shared_ptr<const VerbsDevice>& device = best->queue->device();
  if (best->domain == nullptr) {
    auto domain = VerbsDomain::Create(
        device,
        "a key needs two, for gradients and parameters; combine several tensors in one key");
    if (!domain.ok()) return domain.status();
    best->domain = *std::move(domain);
    for (const Memory& memory : memory_) RegisterWith(*best->domain, memory);
  }
  return Way{.queue = best->queue,
             .domain = best->domain,
             .reason = fmt::format("{} port {} gid {} ({})", device->name(), device->port(),
                                   GidText(device->gid().gid), device->gid_reason())};
}

void VerbsSide::Register(std::byte* data, std::size_t bytes, RegisteredMemory::Use use) {
  if (data == nullptr || bytes == 0) return;
  const std::lock_guard lock(mutex_);
  memory_.push_back({.data = data, .bytes = bytes, .use = use});
  for (const Port& port : ports_) {
    if (port.domain != nullptr) RegisterWith(*port.domain, memory_.back());
  }
}

void VerbsSide::RegisterWith(VerbsDomain& domain, const Memory& memory) {
  const auto index = domain.Add(memory.data, memory.bytes, memory.use, /*owner=*/nullptr);
  if (index.ok()) return;
  LogWarning("event=memory_not_registered device={} bytes={} reason=\"{}\"", domain.device().name(),
             memory.bytes, MessageOf(index.status()));
}

}  // namespace phub::transport
