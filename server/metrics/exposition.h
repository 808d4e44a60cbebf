// The daemon's metrics in Prometheus' text format. docs/operations.md lists them all.
//
// Counters of core loops and control become families of their own: phub_<name>_total. Those that
// say why something was refused become one family with a label: joins_refused_rank_held is
// phub_joins_refused_total{reason="rank_held"}, a core loop's refused_stale is
// phub_messages_refused_total{reason="stale"}. Labels are `core`, `reason`, `state`, `code`,
// `tenant` and `job`; what may have names is bounded (sample.h). Pure functions; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "server/metrics/process_sample.h"
#include "server/metrics/sample.h"

namespace phub::server {

// Of the port itself.
struct HttpSample {
  std::map<unsigned, std::uint64_t> answers;  // [status code]
  std::uint64_t connections_cut = 0;          // too slow to ask, or to take the answer
};

std::string WriteExposition(const MetricsSample& sample, const ProcessSample& process,
                            const HttpSample& http);

// What a counter's family is called, and why it counts, if that is part of its name.
struct CounterFamily {
  std::string name;    // "joins_refused"
  std::string reason;  // "rank_held"; empty: none
};
CounterFamily FamilyOf(std::string_view counter);

// The help of a counter's family; empty if it is not known: a mistake of ours that a test finds.
std::string_view HelpOf(std::string_view family);

}  // namespace phub::server
