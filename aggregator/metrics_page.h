// The page /metrics of phub-aggregator.
#pragma once

#include <string>

#include "aggregator/engine.h"
#include "common/aggregation/datagram_socket.h"
#include "common/http/metrics_server.h"

namespace phub::aggregator {

// Pure but for the CPU time of this process.
std::string WriteMetrics(const Engine& engine, const aggregation::DatagramSocket& socket,
                         const http::HttpCounts& http);

}  // namespace phub::aggregator
