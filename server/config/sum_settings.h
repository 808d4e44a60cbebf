// The settings sum_aggregator and sum_listen. Pure; any thread.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "server/config/settings.h"

namespace phub::server {

// Whether it names a control socket on this host, and not an endpoint with TLS ("host:port").
bool IsSocketPath(std::string_view sum_aggregator);
// INVALID_ARGUMENT: sum_aggregator is neither, or TLS is not set up for an endpoint.
absl::Status CheckSumAggregator(const Settings& settings);

}  // namespace phub::server
