// How phubctl shows a job's exchange between racks. Pure functions.
#pragma once

#include <string>

#include "client/cli/output.h"
#include "phub/v1/admin.pb.h"

namespace phub::client::cli {

// Into the table of what is known of the job.
void AddExchange(const v1::ExchangeInfo& exchange, Table& facts);
// Predicted and measured time by stage, and the lanes to other racks; empty before the first keys.
// `wide`: each tree of the plan, and what went over the lanes by kind.
std::string ExchangeTables(const v1::ExchangeInfo& exchange, bool wide);

}  // namespace phub::client::cli
