#include "common/plan/json_reader.h"

#include <algorithm>

#include "absl/status/status.h"
#include "common/base/printable.h"
#include "fmt/format.h"

namespace phub::plan {
namespace {

constexpr int kDepthMax = 64;

// "line 3, column 7" for a byte offset. The parser's own messages have different formats.
std::string PlaceOf(std::string_view text, std::size_t byte) {
  const std::string_view before = text.substr(0, byte > 0 ? byte - 1 : 0);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t last = before.rfind('\n');
  const std::size_t column = before.size() - (last == std::string_view::npos ? 0 : last + 1) + 1;
  return fmt::format("line {}, column {}", line, column);
}

}  // namespace

absl::Status JsonError(std::string_view where, std::string_view what) {
  return absl::InvalidArgumentError(where.empty() ? std::string(what)
                                                  : fmt::format("{}: {}", where, what));
}

absl::StatusOr<Json> ParseJson(std::string_view text, std::size_t bytes_max) {
  if (text.size() > bytes_max)
    return absl::InvalidArgumentError(
        fmt::format("the JSON has {} bytes; at most {} are allowed", text.size(), bytes_max));
  bool too_deep = false;
  try {
    Json value = Json::parse(text, [&](int depth, Json::parse_event_t, Json&) {
      too_deep |= depth > kDepthMax;
      return depth <= kDepthMax;
    });
    if (too_deep)
      return absl::InvalidArgumentError(
          fmt::format("the JSON is nested deeper than {} levels", kDepthMax));
    return value;
  } catch (const Json::parse_error& error) {
    return absl::InvalidArgumentError(fmt::format("{}: invalid JSON", PlaceOf(text, error.byte)));
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
}

absl::Status CheckObject(const Json& value, std::string_view where,
                         std::initializer_list<std::string_view> fields) {
  if (!value.is_object()) return JsonError(where, "expected an object {...}");
  for (const auto& item : value.items()) {
    if (std::find(fields.begin(), fields.end(), item.key()) == fields.end())
      return JsonError(where, fmt::format("unknown field '{}' (known: {})",
                                          Printable(item.key(), 64), fmt::join(fields, ", ")));
  }
  return absl::OkStatus();
}

absl::StatusOr<const Json*> ArrayField(const Json& object, std::string_view where,
                                       const char* field) {
  const auto found = object.find(field);
  if (found == object.end() || !found->is_array())
    return JsonError(where, fmt::format("field '{}' must be a list [...]", field));
  return &*found;
}

absl::StatusOr<std::string> StringField(const Json& object, std::string_view where,
                                        const char* field) {
  const auto found = object.find(field);
  if (found == object.end() || !found->is_string())
    return JsonError(where, fmt::format("field '{}' must be a string", field));
  return found->get<std::string>();
}

absl::StatusOr<std::int64_t> IntegerField(const Json& object, std::string_view where,
                                          const char* field, std::int64_t least,
                                          std::int64_t most) {
  const auto found = object.find(field);
  const bool is_integer = found != object.end() && found->is_number_integer();
  const bool fits = is_integer && !(found->is_number_unsigned() &&
                                    found->get<std::uint64_t>() > static_cast<std::uint64_t>(most));
  if (!fits || found->get<std::int64_t>() < least || found->get<std::int64_t>() > most)
    return JsonError(
        where, fmt::format("field '{}' must be an integer from {} to {}", field, least, most));
  return found->get<std::int64_t>();
}

absl::StatusOr<bool> FlagField(const Json& object, std::string_view where, const char* field) {
  const auto found = object.find(field);
  if (found == object.end()) return false;
  if (!found->is_boolean())
    return JsonError(where, fmt::format("field '{}' must be true or false", field));
  return found->get<bool>();
}

}  // namespace phub::plan
