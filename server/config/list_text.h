// Settings that are lists: entries separated by commas. Pure; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace phub::server {

// The entries without the spaces around them; none for an empty or blank text. InvalidArgument: an
// entry is empty or occurs twice; the message continues "<name> = <value> ...".
absl::StatusOr<std::vector<std::string>> SplitList(std::string_view text);

}  // namespace phub::server
