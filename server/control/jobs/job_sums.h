// A job's stream of sums on one core loop, as control sees it. Data; the rules are in
// lanes/sum_streams.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/aggregation/packet.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "server/control/core_link.h"

namespace phub::server {

// 0-based index of an entry of the setting sum_aggregator.
using AggregatorIndex = Id<struct AggregatorIndexTag, std::uint32_t>;

struct JobSums {
  // kOff: this job never has a stream. kClosed: it may get one. kAsked: the aggregator was asked
  // for a lease.
  enum class State : std::uint8_t { kOff, kClosed, kAsked, kOpen };
  State state = State::kOff;
  AggregatorIndex aggregator{};  // unless kOff; the same until the job ends
  std::string aggregator_name;   // as in sum_aggregator; empty: that names only one
  std::string reason;            // why gradients go over tcp; unused while kOpen
  TimeNs retry_at = 0;           // kClosed: not before
  phub_endpoint here{};          // where the core loop receives sums; port 0: it has no socket yet
  phub_lease lease{};            // kOpen
  Ticket opened = 0;             // the last kOpenStream's, which refers to `lease`
  std::vector<std::optional<phub_endpoint>> workers;  // [rank], as they said last
};

}  // namespace phub::server
