#include "common/plan/random_topology.h"

#include <vector>

#include "common/base/random.h"
#include "fmt/core.h"

namespace phub::plan {
namespace {

Rational RandomCapacity(SeededRandom& random) {
  return Rational(1 + static_cast<std::int64_t>(random.Below(4)));
}

// A random spanning tree, which connects all nodes, and the same number of additional links.
void ConnectAtRandom(const std::vector<NodeIndex>& nodes, SeededRandom& random,
                     TopologyBuilder& builder) {
  for (std::size_t i = 1; i < nodes.size(); ++i)
    builder.Connect(nodes[random.Below(i)], nodes[i], RandomCapacity(random));
  for (std::size_t i = 1; i < nodes.size(); ++i) {
    const NodeIndex a = nodes[random.Below(nodes.size())];
    const NodeIndex b = nodes[random.Below(nodes.size())];
    if (a != b && !builder.HasLink(a, b)) builder.Connect(a, b, RandomCapacity(random));
  }
}

}  // namespace

void BuildRandomTopology(const RandomTopologyOptions& options, TopologyBuilder& builder) {
  SeededRandom random(options.seed);
  std::vector<NodeIndex> members, switches;
  for (std::int64_t i = 0; i < options.members; ++i)
    members.push_back(builder.AddMember(std::nullopt));
  for (std::int64_t i = 0; i < options.switches; ++i)
    switches.push_back(builder.AddSwitch(fmt::format("s{}", i), std::nullopt));
  if (switches.empty()) {
    ConnectAtRandom(members, random, builder);
    builder.SetMembersForward();
    return;
  }
  ConnectAtRandom(switches, random, builder);
  for (const NodeIndex member : members) {
    const NodeIndex home = switches[random.Below(switches.size())];
    builder.Connect(member, home, Rational(1));
    // A quarter of the members have a second network card.
    const NodeIndex second = switches[random.Below(switches.size())];
    if (second != home && random.Chance(1, 4)) builder.Connect(member, second, Rational(1));
  }
}

}  // namespace phub::plan
