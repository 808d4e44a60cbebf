// What a job that spans racks has on this daemon for the exchange with them: the plan as this rack
// runs it, and each core loop's part. Data; made with the job (racks/rack_plans.cc), freed when
// every core loop has ended it.
#pragma once

#include <memory>
#include <vector>

#include "server/core/exchange/shard_exchange.h"

namespace phub::server {

struct JobExchange {
  exchange::RackPlan plan;
  std::vector<std::unique_ptr<exchange::ShardExchange>> shards;   // [core]
  std::vector<exchange::TreeChooser> choosers;                    // [core]
  std::vector<std::shared_ptr<exchange::ExchangeBatch>> batches;  // of all cores and batches
};

}  // namespace phub::server
