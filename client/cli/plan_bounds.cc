#include "client/cli/plan_bounds.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/units.h"

namespace phub::client::cli {

std::string HumanSeconds(double seconds) {
  return HumanDuration(static_cast<DurationNs>(seconds * 1e9 + 0.5));
}

std::vector<std::string> NamesOf(const plan::Topology& topology,
                                 const std::vector<plan::NodeIndex>& nodes) {
  std::vector<std::string> names;
  for (const plan::NodeIndex node : nodes) names.push_back(topology.node(node).name);
  return names;
}

std::string DescribeCut(const plan::Topology& topology, const std::vector<plan::NodeIndex>& side) {
  std::vector<bool> is_inside(topology.nodes().size(), false);
  for (const plan::NodeIndex node : side) is_inside[node.value] = true;
  const bool is_short = 2 * side.size() <= topology.nodes().size();
  std::vector<std::string> names;
  for (std::uint32_t i = 0; i < is_inside.size(); ++i)
    if (is_inside[i] == is_short) names.push_back(topology.node(plan::NodeIndex{i}).name);
  return fmt::format("{} {{{}}}", is_short ? "out of" : "into", fmt::join(names, " "));
}

std::string DescribePartition(const plan::Topology& topology, const plan::PartitionBound& bound) {
  constexpr std::size_t kGroupsMax = 8, kNamesMax = 8;
  std::string text = fmt::format("{} groups:", bound.groups.size());
  for (std::size_t i = 0; i < std::min(bound.groups.size(), kGroupsMax); ++i) {
    std::vector<std::string> names = NamesOf(topology, bound.groups[i]);
    const std::size_t count = names.size();
    if (count > kNamesMax) {
      names.resize(kNamesMax - 1);
      names.push_back(fmt::format("and {} more", count - names.size()));
    }
    text += fmt::format(" {{{}}}", fmt::join(names, " "));
  }
  if (bound.groups.size() > kGroupsMax)
    text += fmt::format(" and {} more", bound.groups.size() - kGroupsMax);
  return text;
}

std::string DescribeBounds(const plan::Topology& topology, const plan::Choice& choice) {
  const bool is_cut = choice.bound.partition.chunk_times <= choice.bound.narrowest.chunk_times;
  const std::string reason =
      is_cut ? std::string("narrowest cut")
             : fmt::format("partition into {} groups", choice.bound.partition.groups.size());
  std::string text;
  if (topology.HasAggregators())
    text = fmt::format(
        "The lower bound is {} for plans that sum in switches (narrowest cut) and {} for other "
        "plans ({}).\n",
        HumanSeconds(choice.in_switch_bound_seconds), HumanSeconds(choice.bound_seconds), reason);
  else
    text = fmt::format("The lower bound for any plan is {} ({}).\n",
                       HumanSeconds(choice.bound_seconds), reason);
  return text + fmt::format(
                    "Reduce-scatter and all-gather, one phase after the other, take at least {}.\n",
                    HumanSeconds(choice.one_after_the_other_seconds));
}

}  // namespace phub::client::cli
