// What a host's setting says of the RDMA devices to use: phubd's verbs_devices, and
// PHUB_VERBS_DEVICES of a worker. Pure; any thread.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/transport/verbs/verbs_device.h"

namespace phub::transport {

// NAME, NAME:PORT or NAME:PORT:GID_INDEX, separated by commas. Ports count from 1; what is not said
// is chosen (verbs_device.h). kInvalidArgument: it has another form, or names a port twice.
absl::StatusOr<std::vector<VerbsDeviceOptions>> ParseVerbsDevices(std::string_view text);

}  // namespace phub::transport
