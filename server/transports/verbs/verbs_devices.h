// The RDMA devices that the daemon's core loops use: the settings verbs, verbs_devices and
// verbs_ack_timeout, and what this host has, made into one completion queue per core loop. Cold.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/transport/verbs/verbs_connection.h"
#include "common/transport/verbs/verbs_queue.h"
#include "server/config/settings.h"
#include "server/core_plan.h"

namespace phub::server {

using VerbsQueues = std::vector<std::shared_ptr<transport::VerbsQueue>>;  // [core loop]

// Empty: no lanes over verbs. An error where verbs are asked for, or a device by
// name, and cannot be had; it says what to do. What is used, and why not, is logged.
absl::StatusOr<VerbsQueues> OpenVerbsQueues(const Settings& settings, const NumaNodes& core_nodes);
// Which device each core loop uses: those on its own node in turn; if it has none, or is not bound
// to one, all in turn. At least one device.
std::vector<std::size_t> AssignDevices(const NumaNodes& core_nodes, const NumaNodes& device_nodes);

transport::VerbsLimits VerbsLimitsOf(const Settings& settings);

}  // namespace phub::server
