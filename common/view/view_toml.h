// Reads and writes a view in TOML, for files written by hand:
//
//   aggregators = ["spine"]      # optional
//   topology = "links.toml"      # optional: a file (docs/plan.md), or "probe"
//   [[rack]]                     # in order: rack 0 opens jobs that span racks
//   name = "north"
//   daemons = 2
//   [[rack]]
//   name = "south"
//   daemons = 2
//
// topology_text = '...' has the topology itself instead of a file; ViewToToml writes that. Errors
// name the line and the field. Pure, except that it opens the topology's file.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/view/view.h"

namespace phub::view {

inline constexpr std::size_t kViewFileBytesMax = 1 << 20;

// `read_file` returns the contents of the topology's file. The view has no number yet.
// INVALID_ARGUMENT: "line 3: rack[0].daemons must be ...".
absl::StatusOr<View> ParseViewToml(
    std::string_view text,
    const std::function<absl::StatusOr<std::string>(const std::string&)>& read_file);
// Text that reads back to an equal view, except for the number, which is in a comment.
std::string ViewToToml(const View& view);

}  // namespace phub::view
