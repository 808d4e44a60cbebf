// Debian's Abseil has a string_view of its own, which fmt cannot print: a status's words as std's.
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace phub {

// Valid as long as the status.
inline std::string_view MessageOf(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

}  // namespace phub
