// How control reaches an aggregator, and how core loops receive its sums. The daemon implements it
// with sockets (server/sum_link.h).
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
  // A socket for the stream, whose datagrams wake the core loop. `here` gets its address.
  virtual absl::StatusOr<std::unique_ptr<SumPort>> MakePort(CoreIndex core,
                                                            const aggregation::Geometry& geometry,
                                                            aggregation::CoreStream& stream,
                                                            phub_endpoint& here) = 0;
  // Answered by SumStreams::HandleGranted().
  virtual void Grant(SumLeaseRequest request, Incarnation job, CoreIndex core) = 0;
  virtual void End(aggregation::LeaseNumber number) = 0;
};

}  // namespace phub::server
