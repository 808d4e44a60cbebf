// The RDMA devices of the daemon's core loops. Creates one completion queue per core loop from the
// settings verbs, verbs_devices and verbs_ack_timeout and from this host's devices. Cold.
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

// Empty: no lanes over RDMA. An error if the settings require RDMA or name a device that cannot be
// used. Logs the device of each core loop, and why devices are not used.
absl::StatusOr<VerbsQueues> OpenVerbsQueues(const Settings& settings, const NumaNodes& core_nodes);
// The device of each core loop: the devices on its own node in turn; all devices in turn if the
// node has none or the loop is not pinned. REQUIRES: at least one device.
std::vector<std::size_t> AssignDevices(const NumaNodes& core_nodes, const NumaNodes& device_nodes);

transport::VerbsLimits VerbsLimitsOf(const Settings& settings);

}  // namespace phub::server
