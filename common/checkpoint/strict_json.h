// Reads untrusted JSON. Bytes, depth and number of values are limited. It must be UTF-8, without
// duplicate names in an object, fractions, nulls or trailing data. Errors are one phrase with the
// place. Private to common/checkpoint: it includes nlohmann-json. Pure; any thread.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace phub::checkpoint {

using Json = nlohmann::json;

inline constexpr int kJsonDepthMax = 16;
// A tensor takes seven values: enough for half a million tensors, and about 300 MB of memory.
inline constexpr std::size_t kJsonValuesMax = 4u << 20;

absl::StatusOr<Json> ParseStrictJson(std::string_view text, std::size_t bytes_max);

// The text as a JSON string, with quotes and escapes: safe for terminals. Long text is cut.
std::string Quoted(std::string_view text);
bool IsUtf8(std::string_view text);

absl::Status JsonError(std::string_view where, std::string_view what);

// Checks that `value` is an object with exactly these fields.
absl::Status CheckFields(const Json& value, std::string_view where,
                         std::initializer_list<std::string_view> fields);

// Read one field. REQUIRES: CheckFields() has accepted the object.
absl::StatusOr<std::string> TextField(const Json& object, std::string_view where,
                                      const char* field);
absl::StatusOr<std::uint64_t> CountField(const Json& object, std::string_view where,
                                         const char* field, std::uint64_t most = UINT64_MAX);
absl::StatusOr<bool> FlagField(const Json& object, std::string_view where, const char* field);
absl::StatusOr<const Json*> ListField(const Json& object, std::string_view where,
                                      const char* field);
// Reads a list that must hold only strings.
absl::StatusOr<std::vector<std::string>> TextList(const Json& list, std::string_view where);

}  // namespace phub::checkpoint
