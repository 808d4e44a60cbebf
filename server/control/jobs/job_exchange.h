// The state on this daemon for the exchange of a job with other racks: this rack's part of the
// plan, and the part of each core loop. Data; created with the job (racks/rack_plans.cc), freed
// when every core loop has ended it.
#pragma once

#include <memory>
#include <vector>

#include "server/core/exchange/shard_exchange.h"

namespace phub::server {

struct JobExchange {
  exchange::RackPlan plan;
  std::vector<std::shared_ptr<exchange::ShardExchange>> shards;   // [core]
  std::vector<exchange::TreeChooser> choosers;                    // [core]
  std::vector<std::shared_ptr<exchange::ExchangeBatch>> batches;  // all cores, all batches
};

}  // namespace phub::server
