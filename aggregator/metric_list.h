// The engine's counters with their names. Pure.
#pragma once

#include <cstdint>

#include "aggregator/engine.h"

namespace phub::aggregator {

// Calls visit(name, label, value) for each counter; counters of one name follow each other. `label`
// is the value of the only label, "" for none.
template <typename Visit>
void ForEachCounter(const Counters& counters, const Visit& visit) {
  for (std::uint32_t kind = 0; kind < counters.kinds.size(); ++kind) {
    if (NameOfKind(kind) != nullptr) visit("packets_total", NameOfKind(kind), counters.kinds[kind]);
  }
  for (std::uint32_t i = PHUB_CHECK_GOOD + 1; i < PHUB_CHECK_COUNT; ++i)
    visit("dropped_total", NameOf(static_cast<phub_check>(i)), counters.checks[i]);
  for (std::uint32_t i = 0; i < PHUB_VERDICT_COUNT; ++i)
    visit("verdicts_total", NameOf(static_cast<phub_verdict>(i)), counters.verdicts[i]);
  visit("sums_sent_total", "", counters.sums);
  visit("sums_repeated_total", "", counters.sums_repeated);
  visit("answers_sent_total", "", counters.answers);
  visit("nacks_dropped_total", "", counters.nacks_dropped);
  visit("parameters_forwarded_total", "", counters.parameters_forwarded);
  visit("kernel_sums_sent_total", "", counters.kernel_sums);
  visit("kernel_passed_total", "", counters.kernel_passed);
  visit("kernel_events_lost_total", "", counters.kernel_events_lost);
  visit("leases_total", "granted", counters.leases_granted);
  visit("leases_total", "refused", counters.leases_refused);
  visit("leases_total", "ended", counters.leases_ended);
  visit("leases_total", "expired", counters.leases_expired);
  visit("calls_refused_total", "", counters.calls_refused);
}

}  // namespace phub::aggregator
