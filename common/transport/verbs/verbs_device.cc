#include "common/transport/verbs/verbs_device.h"

#include <fmt/format.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>

#include "common/base/check.h"
#include "common/base/errno_text.h"
#include "common/transport/verbs/verbs_library.h"

namespace phub::transport {
namespace {

// Owns the result of ibv_get_device_list.
class DeviceList {
 public:
  DeviceList() : devices_(ibv_get_device_list(&count_)) {}
  ~DeviceList() {
    if (devices_ != nullptr) ibv_free_device_list(devices_);
  }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;

  std::size_t size() const { return devices_ == nullptr ? 0 : static_cast<std::size_t>(count_); }
  ibv_device* at(std::size_t i) const { return devices_[i]; }

 private:
  int count_ = 0;
  ibv_device** devices_;
};

GidType TypeOf(std::uint32_t type) {
  if (type == IBV_GID_TYPE_ROCE_V2) return GidType::kRoceV2;
  return type == IBV_GID_TYPE_ROCE_V1 ? GidType::kRoceV1 : GidType::kInfiniBand;
}

std::optional<std::uint32_t> NumaNodeOf(const std::string& device) {
  std::ifstream file(fmt::format("/sys/class/infiniband/{}/device/numa_node", device));
  int node = -1;
  if (!(file >> node) || node < 0) return std::nullopt;
  return static_cast<std::uint32_t>(node);
}

bool IsZero(const Gid& gid) {
  return std::all_of(gid.begin(), gid.end(), [](std::uint8_t byte) { return byte == 0; });
}

}  // namespace

bool IsGone(ibv_context* context) {
  ibv_device_attr attributes{};
  return ibv_query_device(context, &attributes) != 0;
}

void CheckGivenBack(ibv_context* context, const char* call, int error) {
  PHUB_CHECK(error == 0 || IsGone(context), "device={} {} error={}",
             ibv_get_device_name(context->device), call, error);
}

std::vector<std::string> VerbsDevice::Names() {
  const DeviceList list;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < list.size(); ++i) {
    names.emplace_back(ibv_get_device_name(list.at(i)));
  }
  return names;
}

std::string VerbsDevice::NoDeviceText() {
  if (!VerbsLibraryProblem().empty()) {
    return fmt::format(
        "libibverbs cannot be loaded, so no RDMA device is found ({}); install the package "
        "libibverbs1",
        VerbsLibraryProblem());
  }
  return "this host has no RDMA device; if it has an RDMA NIC, load the NIC's driver and ib_uverbs";
}

absl::StatusOr<std::shared_ptr<const VerbsDevice>> VerbsDevice::Open(
    const VerbsDeviceOptions& options) {
  const DeviceList list;
  if (list.size() == 0) return absl::NotFoundError(NoDeviceText());
  absl::Status last = absl::NotFoundError(fmt::format(
      "there is no RDMA device {}; this host has: {}", options.name, fmt::join(Names(), ", ")));
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string name = ibv_get_device_name(list.at(i));
    if (!options.name.empty() && name != options.name) continue;
    std::shared_ptr<VerbsDevice> device(new VerbsDevice);
    device->name_ = name;
    device->context_ = ibv_open_device(list.at(i));
    if (device->context_ == nullptr) {
      const int error = errno;
      const std::string text = fmt::format(
          "RDMA device {} cannot be opened: {}; this user needs permission to read and write its "
          "file /dev/infiniband/uverbs*",
          name, ErrnoText(error));
      last = error == EACCES || error == EPERM ? absl::PermissionDeniedError(text)
                                               : absl::UnavailableError(text);
      continue;
    }
    last = device->QueryDevice();
    if (last.ok()) last = device->FindPort(options.port);
    if (last.ok()) last = device->FindGid(options);
    if (!last.ok()) continue;
    device->numa_node_ = NumaNodeOf(name);
    auto events = VerbsEvents::Create(device->context_, name, device->port_);
    if (!events.ok()) return events.status();
    device->events_ = *std::move(events);
    return device;
  }
  return last;
}

VerbsDevice::~VerbsDevice() {
  events_.reset();
  if (context_ != nullptr) ibv_close_device(context_);
}

absl::Status VerbsDevice::QueryDevice() {
  ibv_device_attr attributes{};
  if (const int error = ibv_query_device(context_, &attributes); error != 0) {
    return absl::UnavailableError(
        fmt::format("cannot query the features of RDMA device {}: {}", name_, ErrnoText(error)));
  }
  port_count_ = attributes.phys_port_cnt;
  limits_.queue_entries_max = static_cast<std::uint32_t>(attributes.max_cqe);
  limits_.requests_max = static_cast<std::uint32_t>(attributes.max_qp_wr);
  limits_.parts_max = static_cast<std::uint32_t>(attributes.max_sge);
  const unsigned flags = attributes.device_cap_flags;
  limits_.windows = (flags & (IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B)) != 0;
  return absl::OkStatus();
}

absl::Status VerbsDevice::FindPort(std::uint8_t wanted) {
  std::string states;
  for (std::uint8_t port = 1; port <= port_count_; ++port) {
    if (wanted != 0 && port != wanted) continue;
    ibv_port_attr attributes{};
    if (ibv_query_port(context_, port, &attributes) != 0) continue;
    if (attributes.state == IBV_PORT_ACTIVE) {
      // Choose a port without an address only if no other is active; FindGid reports the error
      // then.
      const bool has_address = !ReadGids(context_, port).empty();
      if (port_ != 0 && !has_address) continue;
      port_ = port;
      ethernet_ = attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
      lid_ = attributes.lid;
      mtu_ = static_cast<std::uint8_t>(attributes.active_mtu);
      limits_.message_bytes_max = attributes.max_msg_sz;
      if (has_address) return absl::OkStatus();
      continue;
    }
    states += fmt::format("{}port {} is {}", states.empty() ? "" : ", ", port,
                          ibv_port_state_str(attributes.state));
  }
  if (port_ != 0) return absl::OkStatus();
  if (states.empty()) states = fmt::format("it has {} ports", port_count_);
  return absl::FailedPreconditionError(
      fmt::format("RDMA device {} has no active port{}: {}; check its cable, and set its network "
                  "interface up (ip link set INTERFACE up)",
                  name_, wanted == 0 ? "" : fmt::format(" {}", wanted), states));
}

std::vector<GidEntry> ReadGids(ibv_context* context, std::uint8_t port) {
  constexpr std::size_t kEntriesMax = 256;
  std::array<ibv_gid_entry, kEntriesMax> table{};
  const ssize_t count = ibv_query_gid_table(context, table.data(), table.size(), 0);
  std::vector<GidEntry> entries;
  for (ssize_t i = 0; i < count; ++i) {
    const ibv_gid_entry& from = table[static_cast<std::size_t>(i)];
    GidEntry entry{.index = from.gid_index, .type = TypeOf(from.gid_type), .gid = {}};
    std::copy_n(from.gid.raw, entry.gid.size(), entry.gid.begin());
    if (from.port_num == port && !IsZero(entry.gid)) entries.push_back(entry);
  }
  return entries;
}

absl::Status VerbsDevice::FindGid(const VerbsDeviceOptions& options) {
  std::vector<GidEntry> entries = ReadGids(context_, port_);
  if (options.gid_index) {
    std::erase_if(entries,
                  [&](const GidEntry& entry) { return entry.index != *options.gid_index; });
  }
  std::optional<GidChoice> choice = ChooseGid(entries, options.peer);
  if (!choice) {
    return absl::FailedPreconditionError(
        fmt::format("RDMA device {} port {} has no address{}; assign an IP address to its network "
                    "interface, or "
                    "choose another GID index",
                    name_, port_, options.gid_index ? fmt::format(" {}", *options.gid_index) : ""));
  }
  gid_ = *std::move(choice);
  if (options.gid_index) gid_.reason += ", its index was configured";
  return absl::OkStatus();
}

}  // namespace phub::transport
