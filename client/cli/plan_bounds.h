// Texts about the times and bounds of plans, for the commands of `phubctl plan`.
#pragma once

#include <string>
#include <vector>

#include "common/plan/bound.h"
#include "common/plan/chooser.h"
#include "common/plan/topology.h"

namespace phub::client::cli {

std::string HumanSeconds(double seconds);
std::vector<std::string> NamesOf(const plan::Topology& topology,
                                 const std::vector<plan::NodeIndex>& nodes);
// Describes a cut by the names on its smaller side: "out of {m0}" or "into {m3 m7}".
std::string DescribeCut(const plan::Topology& topology, const std::vector<plan::NodeIndex>& side);
// "3 groups: {m0 m1} {m2} {m3}"; long lists are cut.
std::string DescribePartition(const plan::Topology& topology, const plan::PartitionBound& bound);
// Which bounds the ratios of a comparison refer to.
std::string DescribeBounds(const plan::Topology& topology, const plan::Choice& choice);

}  // namespace phub::client::cli
