// Reads the file of a view. Any thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/view/view.h"

namespace phub::view {

// And the topology's file next to it. INVALID_ARGUMENT: "FILE: line 3: rack[0].daemons ...".
absl::StatusOr<View> ReadViewFile(const std::string& path);

}  // namespace phub::view
