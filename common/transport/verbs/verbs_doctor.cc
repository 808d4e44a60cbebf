#include "common/transport/verbs/verbs_doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "common/base/errno_text.h"
#include "common/base/units.h"

namespace phub::transport {
namespace {

using Level = VerbsFinding::Level;
using Findings = std::vector<VerbsFinding>;

// The path MTU is the largest ibv_mtu that fits, with headers, into the network interface's MTU.
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
       fmt::format("{} cannot be opened: {}", device.file, ErrnoText(device.open_error)),
       permission
           ? fmt::format("give this user read and write permission: echo 'KERNEL==\"uverbs*\", "
                         "MODE=\"0666\"' > /etc/udev/rules.d/90-rdma.rules && udevadm trigger; in "
                         "a container, --device {}",
                         device.file)
           : "reload the device's driver; see dmesg for the reason"});
}

void JudgeWindows(const VerbsDeviceFacts& device, const VerbsNeeds& needs, Findings& findings) {
  if (device.windows) {
    findings.push_back(
        {Level::kGood, device.name, "has memory windows of type 2, which phubd needs", ""});
    return;
  }
  findings.push_back({needs.daemon ? Level::kBad : Level::kAdvice, device.name,
                      "has no memory windows of type 2: workers can use it, phubd cannot",
                      "update the NIC's firmware, or configure other devices in phubd "
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
    findings.push_back({Level::kAdvice, subject, text + "; routers do not forward RoCE v1",
                        "enable RoCE v2 with cma_roce_mode, or in the NIC's driver"});
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
                      fmt::format("{}; {} would need fewer packets", text, kGoodMtuBytes),
                      fmt::format("ip link set {} mtu {}, on both hosts and the switches between",
                                  InterfaceOr(port), kInterfaceMtuBytes)});
}

void JudgePort(const VerbsDeviceFacts& device, const VerbsPortFacts& port, const VerbsNeeds& needs,
               Findings& findings) {
  const std::string subject = fmt::format("{} port {}", device.name, port.number);
  if (!port.active) {
    findings.push_back({Level::kBad, subject, fmt::format("is not active: {}", port.state),
                        port.ethernet
                            ? fmt::format("check its cable; ip link set {} up", InterfaceOr(port))
                            : "check its cable; start a subnet manager (opensm)"});
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
      fmt::format("RLIMIT_MEMLOCK allows {}, {} are needed", HumanBytes(facts.pinned_bytes_max),
                  HumanBytes(needs.pinned_bytes));
  if (facts.pinned_bytes_max >= needs.pinned_bytes) {
    findings.push_back({Level::kGood, subject, text, ""});
    return;
  }
  if (facts.in_slurm_job) {
    findings.push_back({Level::kBad, subject, text + "; data in memory beyond the limit is copied",
                        "Slurm passes on the limits of the shell that ran srun or sbatch: set "
                        "PropagateResourceLimitsExcept=MEMLOCK in slurm.conf, and "
                        "LimitMEMLOCK=infinity in the service slurmd; or run ulimit -l unlimited "
                        "before srun"});
    return;
  }
  const bool may_raise = facts.pinned_bytes_max_hard >= needs.pinned_bytes;
  findings.push_back(
      {Level::kBad, subject, text + "; data in memory beyond the limit is copied",
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
                        "are off: the NIC needs 512 times as many address translations",
                        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"});
    return;
  }
  findings.push_back(
      {Level::kGood, subject,
       fmt::format("transparent huge pages: {}; free in the pool: {}",
                   facts.transparent_huge_pages.empty() ? "unknown" : facts.transparent_huge_pages,
                   HumanBytes(facts.huge_bytes_free)),
       ""});
}

}  // namespace

Findings JudgeVerbs(const VerbsHostFacts& facts, const VerbsNeeds& needs) {
  Findings findings;
  // Without a driver in the kernel nobody needs the library.
  if (!facts.library_problem.empty() && facts.kernel_support) {
    return {
        {Level::kBad, "libibverbs",
         fmt::format("cannot be loaded, so RDMA devices cannot be used: {}", facts.library_problem),
         "install the package libibverbs1, and ibverbs-providers for the NIC's driver"}};
  }
  if (facts.devices.empty()) {
    return {{Level::kGood, "devices",
             fmt::format("this host has no RDMA devices{}; lanes use tcp or shared memory",
                         facts.kernel_support ? "" : ", and the module ib_uverbs is not loaded"),
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
