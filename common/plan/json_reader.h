// Reads JSON objects strictly: every field must be known, have the right type and be in range.
// Errors name the place ("trees[3].reduce[1].step: ..."). Shared by the readers of topologies and
// plans. Private to common/plan: it includes nlohmann-json. One thread.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace phub::plan {

using Json = nlohmann::json;

// Syntax errors name line and column. Fails for more than `bytes_max` bytes or 64 levels.
absl::StatusOr<Json> ParseJson(std::string_view text, std::size_t bytes_max);

absl::Status JsonError(std::string_view where, std::string_view what);

// Checks that `value` is an object without other fields than these.
absl::Status CheckObject(const Json& value, std::string_view where,
                         std::initializer_list<std::string_view> fields);
absl::StatusOr<const Json*> ArrayField(const Json& object, std::string_view where,
                                       const char* field);
absl::StatusOr<std::string> StringField(const Json& object, std::string_view where,
                                        const char* field);
absl::StatusOr<std::int64_t> IntegerField(const Json& object, std::string_view where,
                                          const char* field, std::int64_t least, std::int64_t most);
// False if the field is absent.
absl::StatusOr<bool> FlagField(const Json& object, std::string_view where, const char* field);

}  // namespace phub::plan
