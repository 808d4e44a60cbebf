// Reads JSON of which nothing is trusted: bounded in bytes, depth and values, UTF-8, no name twice
// in an object, whole numbers only, nothing after the end. Errors are one phrase, and say where.
// Private to common/checkpoint: it brings nlohmann-json along. Pure; any thread.
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
// A tensor takes seven, so this is room for half a million of them, and at most some 300 MB.
inline constexpr std::size_t kJsonValuesMax = 4u << 20;

absl::StatusOr<Json> ParseStrictJson(std::string_view text, std::size_t bytes_max);

// As a JSON text in one line, with quotes and escapes: safe on a terminal, cut when long.
std::string Quoted(std::string_view text);
bool IsUtf8(std::string_view text);

absl::Status JsonError(std::string_view where, std::string_view what);

// `value` is an object with exactly these fields.
absl::Status CheckFields(const Json& value, std::string_view where,
                         std::initializer_list<std::string_view> fields);

// Fields of an object that CheckFields() has seen.
absl::StatusOr<std::string> TextField(const Json& object, std::string_view where,
                                      const char* field);
absl::StatusOr<std::uint64_t> CountField(const Json& object, std::string_view where,
                                         const char* field, std::uint64_t most = UINT64_MAX);
absl::StatusOr<bool> FlagField(const Json& object, std::string_view where, const char* field);
absl::StatusOr<const Json*> ListField(const Json& object, std::string_view where,
                                      const char* field);
// The texts of a list that is nothing else.
absl::StatusOr<std::vector<std::string>> TextList(const Json& list, std::string_view where);

}  // namespace phub::checkpoint
