#include "server/control/lanes/aggregator_shares.h"

#include "common/base/check.h"

namespace phub::server {

std::vector<AggregatorIndex> ShareAggregators(std::vector<std::uint32_t> streams,
                                              std::size_t core_loops, std::size_t first) {
  PHUB_CHECK(!streams.empty(), "core_loops={}", core_loops);
  std::vector<AggregatorIndex> aggregators;
  for (std::size_t core = 0; core < core_loops; ++core) {
    std::size_t least = first % streams.size();
    for (std::size_t i = 1; i < streams.size(); ++i) {
      const std::size_t other = (first + i) % streams.size();
      if (streams[other] < streams[least]) least = other;
    }
    ++streams[least];
    aggregators.push_back(AggregatorIndex{static_cast<std::uint32_t>(least)});
  }
  return aggregators;
}

}  // namespace phub::server
