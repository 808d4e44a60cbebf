// The sizes of lists that administrators request. Clients request pages. Older clients request the
// whole list at once, and are refused if it is too long.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string_view>

#include "absl/status/status.h"

namespace phub::server {

inline constexpr std::size_t kPageBytes = 256 << 10;
inline constexpr std::size_t kListBytesMax = 16 << 20;  // without pages

// RESOURCE_EXHAUSTED: the list is too long for one answer. what: "jobs"
inline absl::Status CheckWholeList(std::size_t bytes, std::string_view what) {
  if (bytes <= kListBytesMax) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      fmt::format("the list of {} is too long for one answer; request pages (page_size)", what));
}

}  // namespace phub::server
