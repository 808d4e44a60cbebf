// The settings sum_aggregator and sum_listen. Pure; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/config/settings.h"

namespace phub::server {

// The entries of sum_aggregator, such as "/run/phub/aggregator.sock,10.0.0.9:7702". The message of
// InvalidArgument continues "sum_aggregator = <value> ...".
absl::StatusOr<std::vector<std::string>> ParseSumAggregators(std::string_view text);
// Whether an entry is a control socket on this host, and not an endpoint with TLS ("host:port").
bool IsSocketPath(std::string_view aggregator);
// INVALID_ARGUMENT: an entry is an endpoint, and TLS is not set up. REQUIRES: sum_aggregator by
// itself is valid.
absl::Status CheckSumAggregators(const Settings& settings);

}  // namespace phub::server
