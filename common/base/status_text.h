// A status's message as std::string_view. Debian's Abseil has its own string_view type, which fmt
// cannot print.
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace phub {

// Valid for the lifetime of the status.
inline std::string_view MessageOf(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

}  // namespace phub
