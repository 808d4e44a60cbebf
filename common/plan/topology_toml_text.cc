// Writes topologies in the form that topology_toml.cc reads.
#include <string>

#include "common/base/units.h"
#include "common/plan/topology_toml.h"
#include "fmt/format.h"

namespace phub::plan {
namespace {

// A basic string of TOML.
std::string QuotedToml(std::string_view text) {
  std::string quoted = "\"";
  for (const char character : text) {
    const auto code = static_cast<unsigned char>(character);
    if (code < 0x20 || code == 0x7f || character == '"' || character == '\\') {
      quoted += fmt::format("\\u{:04x}", code);
    } else {
      quoted += character;
    }
  }
  return quoted + '"';
}

std::string NodesText(const Topology& topology, std::string_view key, NodeKind kind) {
  std::string names;
  for (const Node& node : topology.nodes())
    if (node.kind == kind)
      names += fmt::format("{}{}", names.empty() ? "" : ", ", QuotedToml(node.name));
  return names.empty() ? "" : fmt::format("{} = [{}]\n", key, names);
}

}  // namespace

std::string TopologyToToml(const Topology& topology) {
  std::string text = fmt::format("name = {}\nunit = \"{}B/s\"\n{}", QuotedToml(topology.name()),
                                 topology.unit_bytes_per_s(),
                                 topology.members_forward() ? "members_forward = true\n" : "");
  text += NodesText(topology, "members", NodeKind::kMember);
  text += NodesText(topology, "switches", NodeKind::kSwitch);
  text += NodesText(topology, "aggregators", NodeKind::kAggregator);
  for (std::uint32_t i = 0; i < topology.links().size(); ++i) {
    const Link& link = topology.link(LinkIndex{i});
    const std::optional<LinkIndex> mirror = topology.MirrorOf(LinkIndex{i});
    const bool is_two_way = mirror && topology.link(*mirror).latency_ns == link.latency_ns;
    if (is_two_way && mirror->value < i) continue;  // written with its mirror
    text += fmt::format("\n[[link]]\nfrom = {}\nto = {}\nbandwidth = \"{}\"\nlatency = \"{}\"\n{}",
                        QuotedToml(topology.node(link.from).name),
                        QuotedToml(topology.node(link.to).name),
                        topology.CapacityOf(LinkIndex{i}).ToString(),
                        ExactDuration(link.latency_ns), is_two_way ? "" : "one_way = true\n");
  }
  return text;
}

}  // namespace phub::plan
