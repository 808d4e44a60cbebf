// Parses the list of RDMA devices to use: phubd's setting verbs_devices, and a worker's environment
// variable PHUB_VERBS_DEVICES. Pure; any thread.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/transport/verbs/verbs_device.h"

namespace phub::transport {

// Items are NAME, NAME:PORT or NAME:PORT:GID_INDEX, separated by commas. Ports count from 1. A port
// or index that is not given is chosen (verbs_device.h). kInvalidArgument: wrong syntax, or a port
// is named twice.
absl::StatusOr<std::vector<VerbsDeviceOptions>> ParseVerbsDevices(std::string_view text);

}  // namespace phub::transport
