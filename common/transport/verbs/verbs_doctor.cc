#include "common/transport/verbs/verbs_doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "common/base/units.h"

namespace phub::transport {
namespace {

using Level = VerbsFinding::Level;
using Findings = std::vector<VerbsFinding>;

// Of the network interface: the path MTU is the largest that fits with the headers.
constexpr std::uint32_t kGoodMtuBytes = 4096;
constexpr std::uint32_t kInterfaceMtuBytes = 4200;

std::string InterfaceOr(const VerbsPortFacts& port) {
  return port.interface.empty() ? "INTERFACE" : port.interface;
}

void JudgeOpening(const VerbsDeviceFacts& device, Findings& findings) {
  if (device.open_error == 0) {
    findings.push_back({Level::kGood, device.name, fmt::format("{} opens", device.file), ""});
    return;
  }
  const bool permission = device.open_error == EACCES || device.open_error == EPERM;
  findings.push_back(
      {Level::kBad, device.name,
       fmt::format("{} cannot be opened: {}", device.file,
                   std::generic_category().message(device.open_error)),
       permission
           ? fmt::format("let this user read and write it: echo 'KERNEL==\"uverbs*\", "
                         "MODE=\"0666\"' > /etc/udev/rules.d/90-rdma.rules && udevadm trigger; in "
                         "a container, --device {}",
                         device.file)
           : "load the device's driver again; dmesg says what is wrong with it"});
}

void JudgeWindows(const VerbsDeviceFacts& device, const VerbsNeeds& needs, Findings& findings) {
  if (device.windows) {
    findings.push_back(
        {Level::kGood, device.name, "has memory windows of type 2, as phubd needs them", ""});
    return;
  }
  findings.push_back({needs.daemon ? Level::kBad : Level::kAdvice, device.name,
                      "has no memory windows of type 2: good for workers, not for phubd",
                      "update the NIC's firmware, or name other devices to phubd "
                      "(--verbs-devices)"});
}

void JudgeGid(const std::string& subject, const VerbsPortFacts& port, const VerbsNeeds& needs,
              Findings& findings) {
  const std::optional<GidChoice> choice = ChooseGid(port.gids, needs.peer);
  const std::string add = fmt::format("ip address add ADDRESS/LENGTH dev {}", InterfaceOr(port));
  if (!choice) {
    findings.push_back({Level::kBad, subject, "has no address (GID)",
                        port.ethernet ? add : "start a subnet manager (opensm)"});
    return;
  }
  const GidEntry& gid = choice->entry;
  const std::string text =
      fmt::format("address {} (GID {}, {})", GidText(gid.gid), gid.index, choice->reason);
  if (gid.type == GidType::kRoceV1) {
    findings.push_back({Level::kAdvice, subject, text + "; no router forwards RoCE v1",
                        "cma_roce_mode, or the NIC's driver, can turn RoCE v2 on"});
  } else if (port.ethernet && IsLinkLocal(gid.gid)) {
    findings.push_back({Level::kAdvice, subject, text + "; only its own link can reach it", add});
  } else {
    findings.push_back({Level::kGood, subject, text, ""});
  }
}

void JudgeMtu(const std::string& subject, const VerbsPortFacts& port, Findings& findings) {
  const std::string text = fmt::format("path MTU {} bytes", port.mtu_bytes);
  if (!port.ethernet || port.mtu_bytes >= std::min(kGoodMtuBytes, port.mtu_bytes_max)) {
    findings.push_back({Level::kGood, subject, text, ""});
    return;
  }
  findings.push_back({Level::kAdvice, subject,
                      fmt::format("{}, where {} would do with fewer packets", text, kGoodMtuBytes),
                      fmt::format("ip link set {} mtu {}, at both ends and in the switches between",
                                  InterfaceOr(port), kInterfaceMtuBytes)});
}

void JudgePort(const VerbsDeviceFacts& device, const VerbsPortFacts& port, const VerbsNeeds& needs,
               Findings& findings) {
  const std::string subject = fmt::format("{} port {}", device.name, port.number);
  if (!port.active) {
    findings.push_back({Level::kBad, subject, fmt::format("is not active: {}", port.state),
                        port.ethernet
                            ? fmt::format("plug its cable in; ip link set {} up", InterfaceOr(port))
                            : "plug its cable in; start a subnet manager (opensm)"});
    return;
  }
  findings.push_back({Level::kGood, subject,
                      fmt::format("is active, {}{}{}", port.ethernet ? "RoCE" : "InfiniBand",
                                  port.interface.empty() ? "" : " on ", port.interface),
                      ""});
  JudgeGid(subject, port, needs, findings);
  JudgeMtu(subject, port, findings);
}

void JudgePinning(const VerbsHostFacts& facts, const VerbsNeeds& needs, Findings& findings) {
  const std::string subject = "pinned memory";
  if (facts.pinned_bytes_max == kUnlimitedBytes || facts.may_exceed_limit) {
    findings.push_back({Level::kGood, subject, "no limit", ""});
    return;
  }
  const std::string text =
      fmt::format("RLIMIT_MEMLOCK allows {}, {} are to be registered",
                  HumanBytes(facts.pinned_bytes_max), HumanBytes(needs.pinned_bytes));
  if (facts.pinned_bytes_max >= needs.pinned_bytes) {
    findings.push_back({Level::kGood, subject, text, ""});
    return;
  }
  const bool may_raise = facts.pinned_bytes_max_hard >= needs.pinned_bytes;
  findings.push_back(
      {Level::kBad, subject, text + "; what does not fit is copied",
       may_raise ? fmt::format("ulimit -l {}", facts.pinned_bytes_max_hard == kUnlimitedBytes
                                                   ? "unlimited"
                                                   : fmt::format("{}", needs.pinned_bytes / 1024))
                 : "LimitMEMLOCK=infinity in the service, or '* - memlock unlimited' in "
                   "/etc/security/limits.d/rdma.conf and a new login; in a container, --ulimit "
                   "memlock=-1"});
}

void JudgeHugePages(const VerbsHostFacts& facts, Findings& findings) {
  const std::string subject = "huge pages";
  if (facts.transparent_huge_pages == "never" && facts.huge_bytes_free == 0) {
    findings.push_back({Level::kAdvice, subject,
                        "are off: the NIC keeps 512 times as many translations",
                        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"});
    return;
  }
  findings.push_back(
      {Level::kGood, subject,
       fmt::format(
           "transparent ones are {}, {} set aside",
           facts.transparent_huge_pages.empty() ? "not known" : facts.transparent_huge_pages,
           HumanBytes(facts.huge_bytes_free)),
       ""});
}

}  // namespace

Findings JudgeVerbs(const VerbsHostFacts& facts, const VerbsNeeds& needs) {
  Findings findings;
  if (facts.devices.empty()) {
    return {{Level::kGood, "devices",
             fmt::format("this host has no RDMA devices{}; lanes go over tcp or shared memory",
                         facts.kernel_support ? "" : ", and its kernel has no RDMA loaded"),
             ""}};
  }
  for (const VerbsDeviceFacts& device : facts.devices) {
    JudgeOpening(device, findings);
    if (device.open_error != 0) continue;
    JudgeWindows(device, needs, findings);
    for (const VerbsPortFacts& port : device.ports) JudgePort(device, port, needs, findings);
  }
  JudgePinning(facts, needs, findings);
  JudgeHugePages(facts, findings);
  return findings;
}

std::uint32_t UsableVerbsDevices(const VerbsHostFacts& facts, const VerbsNeeds& needs) {
  const auto usable = [&](const VerbsDeviceFacts& device) {
    return device.open_error == 0 && (device.windows || !needs.daemon) &&
           std::any_of(device.ports.begin(), device.ports.end(), [](const VerbsPortFacts& port) {
             return port.active && !port.gids.empty();
           });
  };
  return static_cast<std::uint32_t>(
      std::count_if(facts.devices.begin(), facts.devices.end(), usable));
}

}  // namespace phub::transport
