#include "common/transport/verbs/verbs_facts.h"

#include <fmt/format.h>
#include <infiniband/verbs.h>
#include <sys/resource.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/transport/verbs/verbs_device.h"
#include "common/transport/verbs/verbs_library.h"

namespace phub::transport {
namespace {

// The first line of the file; empty if the file has none.
std::string LineOf(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::uint64_t LimitBytes(rlim_t limit) {
  return limit == RLIM_INFINITY ? kUnlimitedBytes : static_cast<std::uint64_t>(limit);
}

// The value of "Name:   123 kB" or "Name:  0000000000004000".
std::string FieldOf(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(name + ":", 0) != 0) continue;
    const std::size_t begin = line.find_first_not_of(" \t", name.size() + 1);
    if (begin == std::string::npos) return {};
    return line.substr(begin, line.find_first_of(" \t", begin) - begin);
  }
  return {};
}

std::uint64_t NumberOf(const std::string& text, int base) {
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, base);
  return value;
}

void ReadLimits(VerbsHostFacts& facts) {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
    facts.pinned_bytes_max = LimitBytes(limit.rlim_cur);
    facts.pinned_bytes_max_hard = LimitBytes(limit.rlim_max);
  }
  facts.in_slurm_job = std::getenv("SLURM_JOB_ID") != nullptr;
  constexpr unsigned kIpcLock = 14;  // CAP_IPC_LOCK
  facts.may_exceed_limit =
      (NumberOf(FieldOf("/proc/self/status", "CapEff"), 16) >> kIpcLock & 1) != 0;
  constexpr std::uint64_t kKilo = 1024;
  facts.huge_bytes_free = NumberOf(FieldOf("/proc/meminfo", "HugePages_Free"), 10) *
                          NumberOf(FieldOf("/proc/meminfo", "Hugepagesize"), 10) * kKilo;
  // "always [madvise] never"
  const std::string modes = LineOf("/sys/kernel/mm/transparent_hugepage/enabled");
  const std::size_t begin = modes.find('[');
  const std::size_t end = modes.find(']');
  if (begin != std::string::npos && end != std::string::npos) {
    facts.transparent_huge_pages = modes.substr(begin + 1, end - begin - 1);
  }
}

VerbsPortFacts ReadPort(ibv_context* context, const std::string& device, std::uint8_t number) {
  VerbsPortFacts port{.number = number};
  ibv_port_attr attributes{};
  if (ibv_query_port(context, number, &attributes) != 0) {
    port.state = "unknown";
    return port;
  }
  constexpr std::uint32_t kMtuUnit = 128;  // ibv_mtu is 1 for 256 bytes, 2 for 512, ...
  port.state = ibv_port_state_str(attributes.state);
  port.active = attributes.state == IBV_PORT_ACTIVE;
  port.ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
  port.mtu_bytes = kMtuUnit << attributes.active_mtu;
  port.mtu_bytes_max = kMtuUnit << attributes.max_mtu;
  port.gids = ReadGids(context, number);
  const std::string ports = fmt::format("/sys/class/infiniband/{}/ports/{}", device, number);
  std::error_code ignored;
  for (const auto& entry :
       std::filesystem::directory_iterator(ports + "/gid_attrs/ndevs", ignored)) {
    if (!port.interface.empty()) break;
    port.interface = LineOf(entry.path());
  }
  return port;
}

VerbsDeviceFacts ReadDevice(ibv_device* device) {
  VerbsDeviceFacts facts;
  facts.name = ibv_get_device_name(device);
  facts.file = fmt::format("/dev/infiniband/{}", device->dev_name);
  ibv_context* const context = ibv_open_device(device);
  if (context == nullptr) {
    facts.open_error = errno == 0 ? EIO : errno;
    return facts;
  }
  ibv_device_attr attributes{};
  if (ibv_query_device(context, &attributes) == 0) {
    const unsigned flags = attributes.device_cap_flags;
    facts.windows = (flags & (IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B)) != 0;
    for (unsigned port = 1; port <= attributes.phys_port_cnt; ++port) {
      facts.ports.push_back(ReadPort(context, facts.name, static_cast<std::uint8_t>(port)));
    }
  }
  ibv_close_device(context);
  return facts;
}

}  // namespace

VerbsHostFacts ReadVerbsHostFacts() {
  VerbsHostFacts facts;
  std::error_code ignored;
  facts.kernel_support = std::filesystem::exists("/sys/class/infiniband_verbs", ignored);
  facts.library_problem = VerbsLibraryProblem();
  int count = 0;
  ibv_device** const devices = ibv_get_device_list(&count);
  for (int i = 0; devices != nullptr && i < count; ++i) {
    facts.devices.push_back(ReadDevice(devices[i]));
  }
  if (devices != nullptr) ibv_free_device_list(devices);
  ReadLimits(facts);
  return facts;
}

}  // namespace phub::transport
