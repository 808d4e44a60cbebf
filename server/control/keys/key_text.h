// Names of keys, for messages about calls of several keys.
#pragma once

#include <cstdint>
#include <string>

#include "server/control/jobs/job.h"

namespace phub::server {

// "key a", "keys a, b", "keys a, b, c and 4 more". REQUIRES: there are some.
std::string DescribeKeys(const KeySpecs& keys);
std::string DescribeKeys(const KeyList& keys);
// The same for the keys of the batches from `first_batch` on that the rank has added.
std::string DescribeBatches(const Job& job, std::uint32_t first_batch, Rank rank);

}  // namespace phub::server
