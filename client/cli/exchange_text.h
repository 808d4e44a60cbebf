// Formats a job's exchange between racks. Pure functions.
#pragma once

#include <string>

#include "client/cli/output.h"
#include "phub/v1/admin.pb.h"

namespace phub::client::cli {

// Adds rows to the job's table of facts.
void AddExchange(const v1::ExchangeInfo& exchange, Table& facts);
// Predicted and measured time per stage, and the lanes to other racks; empty before the first keys.
// `wide`: also each tree of the plan, and the lanes' traffic by kind.
std::string ExchangeTables(const v1::ExchangeInfo& exchange, bool wide);

}  // namespace phub::client::cli
