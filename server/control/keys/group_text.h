// Groups in messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "server/control/jobs/group.h"
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

inline std::string Describe(const Group& group) {
  return fmt::format("group {} (ranks {})", group.name, DescribeRanks(group.ranks));
}

}  // namespace phub::server
