// The daemon's metrics in Prometheus' text format. docs/operations.md lists them all.
//
// Each counter of core loops and control is a family of its own: phub_<name>_total. Counters with a
// reason for a refusal are one family with a label: joins_refused_rank_held is
// phub_joins_refused_total{reason="rank_held"}, a core loop's refused_stale is
// phub_messages_refused_total{reason="stale"}. Labels are `core`, `reason`, `state`, `code`,
// `tenant` and `job`; the number of jobs and tenants is bounded (sample.h). Pure functions; any
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/http/metrics_server.h"
#include "server/metrics/process_sample.h"
#include "server/metrics/sample.h"

namespace phub::server {

std::string WriteExposition(const MetricsSample& sample, const ProcessSample& process,
                            const http::HttpCounts& http);

// The family of a counter, and the reason that the counter's name contains, if any.
struct CounterFamily {
  std::string name;    // "joins_refused"
  std::string reason;  // "rank_held"; empty: none
};
CounterFamily FamilyOf(std::string_view counter);

// The help of a counter's family; empty if the family is unknown, which a test rules out.
std::string_view HelpOf(std::string_view family);

}  // namespace phub::server
