// Groups in messages, and their ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "server/control/jobs/group.h"
#include "server/control/jobs/job.h"
#include "server/control/text.h"

namespace phub::server {

// "0, 1, 5"; a long list is cut.
std::string DescribeRanks(const auto& ranks) {
  constexpr std::size_t kRanksNamedMax = 16;
  std::string text;
  std::size_t count = 0;
  for (const std::uint32_t rank : ranks) {
    if (++count > kRanksNamedMax) return text + ", ...";
    text += fmt::format("{}{}", text.empty() ? "" : ", ", rank);
  }
  return text;
}

// The rank in control's numbering; no rank of this rack has the number of another rack's rank.
inline Rank InRack(const Job& job, std::uint32_t rank) { return Rank{rank - job.config.rank_base}; }

// Two ranks made a group of one name with different members, and share some of them.
inline std::string DescribeDisagreement(const Job& job, const Group& group, Rank rank,
                                        const std::string& ranks) {
  return fmt::format("{} made group {} of ranks {}, and {} made it of ranks {}",
                     DescribeRankBriefly(job, group.first), group.name, DescribeRanks(group.ranks),
                     DescribeRankBriefly(job, rank), ranks);
}

inline std::vector<Rank> InJob(const std::vector<std::uint32_t>& numbers) {
  std::vector<Rank> ranks;
  for (const std::uint32_t each : numbers) ranks.push_back(Rank{each});
  return ranks;
}

inline std::string Describe(const Group& group) {
  return fmt::format("group {} (ranks {})", group.name, DescribeRanks(group.ranks));
}

}  // namespace phub::server
