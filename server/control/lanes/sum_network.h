// How control reaches aggregators, and how core loops receive their sums. The daemon implements it
// with sockets (server/sum_links.h).
//
// The number of a lease identifies it at one aggregator only: two aggregators may grant leases with
// equal numbers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/aggregation/core_stream.h"
#include "common/aggregation/packet.h"
#include "common/aggregation/stream.h"
#include "common/base/ids.h"
#include "server/control/jobs/job_sums.h"
#include "server/core/shard_sums.h"

namespace phub::server {

struct SumLeaseRequest {
  std::string tenant;
  std::string job;
  std::uint32_t slot_count = 0;
  std::uint32_t count_max = 0;  // integers of a block
  phub_endpoint core_loop{};
  std::vector<phub_endpoint> workers;  // by number, 1 to PHUB_WORKERS_MAX
};

class SumNetwork {
 public:
  virtual ~SumNetwork() = default;
  virtual std::uint32_t aggregator_count() const = 0;  // at least 1
  // As the setting sum_aggregator names it.
  virtual const std::string& NameOf(AggregatorIndex aggregator) const = 0;
  // A socket for the stream, whose datagrams wake the core loop. `here` gets its address.
  virtual absl::StatusOr<std::unique_ptr<SumPort>> MakePort(AggregatorIndex aggregator,
                                                            CoreIndex core,
                                                            const aggregation::Geometry& geometry,
                                                            aggregation::CoreStream& stream,
                                                            phub_endpoint& here) = 0;
  // Answered by SumStreams::HandleGranted().
  virtual void Grant(AggregatorIndex aggregator, SumLeaseRequest request, Incarnation job,
                     CoreIndex core) = 0;
  virtual void End(AggregatorIndex aggregator, aggregation::LeaseNumber number) = 0;
};

}  // namespace phub::server
