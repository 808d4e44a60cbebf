#include "client/cli/topology_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "common/base/printable.h"
#include "common/base/units.h"
#include "common/plan/topology_json.h"

namespace phub::client::cli {
namespace {

struct SwitchMembers {
  std::string name;
  std::vector<std::uint32_t> members;  // ranks
};

// Each switch and the racks that have a link to it.
std::vector<SwitchMembers> MembersAtSwitches(const plan::Topology& topology) {
  std::vector<SwitchMembers> all;
  for (std::uint32_t i = 0; i < topology.nodes().size(); ++i) {
    const plan::NodeIndex node{i};
    if (topology.node(node).kind == plan::NodeKind::kMember) continue;
    std::vector<std::uint32_t>& members =
        all.emplace_back(SwitchMembers{topology.node(node).name, {}}).members;
    for (const plan::Link& link : topology.links()) {
      const bool is_member = topology.node(link.from).kind == plan::NodeKind::kMember;
      if (link.to == node && is_member) members.push_back(topology.RankOf(link.from));
    }
    std::sort(members.begin(), members.end());
  }
  return all;
}

}  // namespace

std::string BriefTopologyText(std::string_view json) {
  const auto topology = plan::ParseTopologyJson(json);
  if (!topology.ok()) return "in a format that this phubctl cannot read";
  std::string text;
  for (const auto& [name, members] : MembersAtSwitches(*topology)) {
    if (!members.empty()) text += fmt::format("{{{}}} ", fmt::join(members, " "));
  }
  return text + fmt::format("on {} links", topology->links().size());
}

std::string AgeText(std::int64_t unix_ns) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::int64_t age = std::chrono::nanoseconds(now).count() - unix_ns;
  return HumanDuration(std::max<std::int64_t>(0, age / kSecond * kSecond));
}

std::string TopologySwitchesText(const plan::Topology& topology) {
  std::string text;
  for (const auto& [name, members] : MembersAtSwitches(topology)) {
    text += fmt::format(
        "  {}: {}\n", Printable(name),
        members.empty() ? "no racks" : fmt::format("racks {}", fmt::join(members, " ")));
  }
  for (std::uint32_t i = 0; i < topology.links().size(); ++i) {
    const plan::LinkIndex link{i};
    const double bytes_per_s =
        topology.CapacityOf(link).ToDouble() * static_cast<double>(topology.unit_bytes_per_s());
    text += fmt::format("  {} -> {}: {:.0f} Mbit/s, {}\n",
                        Printable(topology.node(topology.link(link).from).name),
                        Printable(topology.node(topology.link(link).to).name), bytes_per_s * 8e-6,
                        HumanDuration(topology.link(link).latency_ns));
  }
  return text;
}

}  // namespace phub::client::cli
