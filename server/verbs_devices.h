// The RDMA devices that the daemon's core loops use: the settings verbs, verbs_devices and
// verbs_ack_timeout, and what this host has, made into one completion queue per core loop. Cold.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/transport/verbs/verbs_connection.h"
#include "common/transport/verbs/verbs_queue.h"
#include "server/config/settings.h"

namespace phub::server {

using VerbsQueues = std::vector<std::shared_ptr<transport::VerbsQueue>>;  // [core loop]

// Devices in turn. Empty: no lanes over verbs. An error where verbs are asked for, or a device by
// name, and cannot be had; it says what to do. What is used, and why not, is logged.
absl::StatusOr<VerbsQueues> OpenVerbsQueues(const Settings& settings, std::size_t core_loops);

transport::VerbsLimits VerbsLimitsOf(const Settings& settings);

}  // namespace phub::server
