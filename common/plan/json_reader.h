// Reads the fields of a JSON object strictly: every field must be known, of the right type and in
// range, and errors say where ("trees[3].reduce[1].step: ..."). Shared by the readers of topologies
// and plans. Private to common/plan: it brings nlohmann-json along. One thread.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace phub::plan {

using Json = nlohmann::json;

// Syntax errors name line and column. At most `bytes_max` bytes and 64 levels are read.
absl::StatusOr<Json> ParseJson(std::string_view text, std::size_t bytes_max);

absl::Status JsonError(std::string_view where, std::string_view what);

// `value` is an object and has no other fields than these.
absl::Status CheckObject(const Json& value, std::string_view where,
                         std::initializer_list<std::string_view> fields);
absl::StatusOr<const Json*> ArrayField(const Json& object, std::string_view where,
                                       const char* field);
absl::StatusOr<std::string> StringField(const Json& object, std::string_view where,
                                        const char* field);
absl::StatusOr<std::int64_t> IntegerField(const Json& object, std::string_view where,
                                          const char* field, std::int64_t least, std::int64_t most);
// Absent is false.
absl::StatusOr<bool> FlagField(const Json& object, std::string_view where, const char* field);

}  // namespace phub::plan
