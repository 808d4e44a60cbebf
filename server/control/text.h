// Formats values for messages. Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/printable.h"
#include "server/core/commands.h"

namespace phub::server {

std::string FormatAge(DurationNs age);             // "2.0 s", "35 ms"
std::string FormatIncarnation(Incarnation value);  // 16 hexadecimal digits
// "connection reset", "closed by the worker", "protocol error: slot_range", ... followed by the
// error detail of the connection, if there is one. `peer` names the other end.
std::string DescribeLoss(const Event& event, std::string_view peer = "the worker");

}  // namespace phub::server
