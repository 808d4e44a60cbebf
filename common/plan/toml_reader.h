// Helpers of the readers of TOML. Private to common/plan: it includes toml++. Pure.
#pragma once

#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "common/base/printable.h"
#include "fmt/format.h"

namespace phub::plan {

inline absl::Status TomlError(std::uint32_t line, std::string_view what) {
  return absl::InvalidArgumentError(fmt::format("line {}: {}", line, what));
}

inline std::uint32_t LineOf(const toml::node& node) { return node.source().begin.line; }

// Checks that the table has no other keys than these.
template <std::size_t kCount>
absl::Status CheckKeys(const toml::table& table, const std::array<std::string_view, kCount>& known,
                       std::string_view where) {
  for (const auto& [key, value] : table) {
    const std::string_view name = key.str();
    if (std::find(known.begin(), known.end(), name) == known.end())
      return TomlError(key.source().begin.line,
                       fmt::format("unknown key '{}' in {} (known: {})", Printable(name, 64), where,
                                   fmt::join(known, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace phub::plan
