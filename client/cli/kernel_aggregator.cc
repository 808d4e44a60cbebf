#include "client/cli/kernel_aggregator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <fstream>
#include <utility>

namespace phub::client::cli {
namespace {

using transport::LaneFinding;
using Level = LaneFinding::Level;

// docs/aggregation.md: the page that a native program needs for a packet has room for these.
constexpr int kNativeMtuMax = 3506;

// As capabilities(7) numbers them.
constexpr std::pair<int, const char*> kCapabilities[] = {
    {12, "CAP_NET_ADMIN"}, {38, "CAP_PERFMON"}, {39, "CAP_BPF"}};

LaneFinding Finding(Level level, std::string text, std::string fix = "") {
  return {.level = level, .subject = "xdp", .text = std::move(text), .fix = std::move(fix)};
}

template <typename Value>
bool Read(const std::string& path, Value& value) {
  std::ifstream file(path);
  return static_cast<bool>(file >> value);
}

std::uint64_t EffectiveCapabilities(const std::string& root) {
  std::ifstream status(root + "/proc/self/status");
  for (std::string word; status >> word;) {
    std::uint64_t bits = 0;
    if (word == "CapEff:" && status >> std::hex >> bits) return bits;
  }
  return 0;
}

LaneFinding CapabilityFinding(const std::string& root) {
  const std::uint64_t held = EffectiveCapabilities(root);
  std::vector<std::string> missing;
  for (const auto& [bit, name] : kCapabilities)
    if ((held >> bit & 1) == 0) missing.emplace_back(name);
  if (missing.empty()) return Finding(Level::kGood, "this user may load programs into the kernel");
  return Finding(Level::kBad,
                 fmt::format("this user lacks {}, which phub-aggregator --xdp needs",
                             fmt::join(missing, ", ")),
                 "give the service CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON "
                 "(AmbientCapabilities= in the unit; docs/aggregation.md has a drop-in)");
}

void AddInterfaceFindings(const std::string& name, const std::string& root,
                          std::vector<LaneFinding>& findings) {
  const std::string folder = root + "/sys/class/net/" + name;
  int mtu = 0;
  if (name.find('/') != std::string::npos || !Read(folder + "/mtu", mtu)) {
    findings.push_back(Finding(Level::kBad, fmt::format("there is no network interface {}", name),
                               "name one that `ip link` shows"));
    return;
  }
  std::string state;
  if (Read(folder + "/operstate", state) && state == "down")
    findings.push_back(Finding(Level::kBad, fmt::format("interface {} is down", name),
                               fmt::format("ip link set {} up", name)));
  if (mtu > kNativeMtuMax)
    findings.push_back(Finding(
        Level::kAdvice,
        fmt::format("interface {} has an MTU of {}; drivers refuse programs above about {}, and "
                    "the generic mode costs more",
                    name, mtu, kNativeMtuMax),
        fmt::format("ip link set {} mtu 1500, which holds a contribution of 350 integers", name)));
  else
    findings.push_back(
        Finding(Level::kGood, fmt::format("interface {} has an MTU of {}", name, mtu)));
}

}  // namespace

std::vector<LaneFinding> KernelAggregatorFindings(const std::string& interface,
                                                  const std::string& root) {
  std::vector<LaneFinding> findings;
  int compiles = 0;
  if (!Read(root + "/proc/sys/net/core/bpf_jit_enable", compiles))
    findings.push_back(Finding(Level::kBad, "this kernel has no BPF (CONFIG_BPF_SYSCALL, _JIT)",
                               "run phub-aggregator without --xdp"));
  else if (compiles == 0)
    findings.push_back(Finding(Level::kAdvice,
                               "the kernel interprets programs (bpf_jit_enable is 0), which costs "
                               "several times as much",
                               "sysctl -w net.core.bpf_jit_enable=1"));
  findings.push_back(CapabilityFinding(root));
  AddInterfaceFindings(interface, root, findings);
  return findings;
}

}  // namespace phub::client::cli
