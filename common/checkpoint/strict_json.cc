#include "common/checkpoint/strict_json.h"

#include <algorithm>

#include "absl/status/status.h"
#include "fmt/format.h"

namespace phub::checkpoint {
namespace {

constexpr std::size_t kQuotedBytesMax = 96;

// Builds the value during parsing and stops at the first violation.
class StrictBuilder final : public nlohmann::json_sax<Json> {
 public:
  Json& root() { return root_; }
  const std::string& error() const { return error_; }
  std::size_t error_byte() const { return error_byte_; }

  bool null() override { return Refuse("null is not allowed"); }
  bool number_float(double /*value*/, const std::string& text) override {
    return Refuse(fmt::format("{} is not a 64-bit integer", text.substr(0, 40)));
  }
  bool binary(Json::binary_t& /*value*/) override { return Refuse("binary data is not allowed"); }
  bool boolean(bool value) override { return Add(value) != nullptr; }
  bool number_integer(std::int64_t value) override { return Add(value) != nullptr; }
  bool number_unsigned(std::uint64_t value) override { return Add(value) != nullptr; }
  bool string(std::string& value) override { return Add(std::move(value)) != nullptr; }
  bool start_object(std::size_t /*count*/) override { return Open(Json::object()); }
  bool start_array(std::size_t /*count*/) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(std::string& name) override {
    if (open_.back()->contains(name))
      return Refuse(fmt::format("the name {} occurs twice", Quoted(name)));
    name_ = std::move(name);
    return true;
  }
  bool parse_error(std::size_t byte, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    error_byte_ = byte;
    return Refuse("invalid JSON");
  }

 private:
  bool Refuse(std::string error) {
    if (error_.empty()) error_ = std::move(error);
    return false;
  }

  Json* Add(Json value) {
    if (++value_count_ > kJsonValuesMax) {
      Refuse(fmt::format("the JSON has more than {} values", kJsonValuesMax));
      return nullptr;
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) return &parent.emplace_back(std::move(value));
    return &(parent[std::move(name_)] = std::move(value));
  }

  bool Open(Json value) {
    if (open_.size() == kJsonDepthMax)
      return Refuse(fmt::format("the JSON is nested deeper than {} levels", kJsonDepthMax));
    Json* const added = Add(std::move(value));
    // The pointer stays valid: nothing is added to a parent while its child is open.
    if (added != nullptr) open_.push_back(added);
    return added != nullptr;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  Json root_;
  std::vector<Json*> open_;
  std::string name_;
  std::size_t value_count_ = 0;
  std::string error_;
  std::size_t error_byte_ = 0;
};

}  // namespace

absl::StatusOr<Json> ParseStrictJson(std::string_view text, std::size_t bytes_max) {
  if (text.size() > bytes_max)
    return absl::InvalidArgumentError(
        fmt::format("the JSON has {} bytes; at most {} are allowed", text.size(), bytes_max));
  // The parser would stop at a zero byte and ignore the rest.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos)
    return absl::InvalidArgumentError(fmt::format("byte {}: invalid JSON", zero));
  StrictBuilder builder;
  if (!Json::sax_parse(text, &builder)) {
    if (builder.error_byte() == 0) return absl::InvalidArgumentError(builder.error());
    return absl::InvalidArgumentError(
        fmt::format("byte {}: {}", builder.error_byte() - 1, builder.error()));
  }
  return std::move(builder.root());
}

std::string Quoted(std::string_view text) {
  const std::string_view shown = text.substr(0, kQuotedBytesMax);
  const std::string quoted =
      Json(shown).dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  return shown.size() == text.size() ? quoted : quoted + "...";
}

bool IsUtf8(std::string_view text) {
  try {
    (void)Json(text).dump();
    return true;
  } catch (const Json::type_error&) {
    return false;
  }
}

absl::Status JsonError(std::string_view where, std::string_view what) {
  return absl::InvalidArgumentError(where.empty() ? std::string(what)
                                                  : fmt::format("{}: {}", where, what));
}

absl::Status CheckFields(const Json& value, std::string_view where,
                         std::initializer_list<std::string_view> fields) {
  if (!value.is_object()) return JsonError(where, "expected an object {...}");
  for (const auto& item : value.items()) {
    if (std::find(fields.begin(), fields.end(), item.key()) == fields.end())
      return JsonError(where, fmt::format("unknown field {}", Quoted(item.key())));
  }
  for (const std::string_view field : fields) {
    if (!value.contains(field))
      return JsonError(where, fmt::format("field \"{}\" is missing", field));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> TextField(const Json& object, std::string_view where,
                                      const char* field) {
  const Json& value = object.at(field);
  if (!value.is_string()) return JsonError(where, fmt::format("\"{}\" must be a string", field));
  return value.get<std::string>();
}

absl::StatusOr<std::uint64_t> CountField(const Json& object, std::string_view where,
                                         const char* field, std::uint64_t most) {
  const Json& value = object.at(field);
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > most)
    return JsonError(where, fmt::format("\"{}\" must be an integer from 0 to {}", field, most));
  return value.get<std::uint64_t>();
}

absl::StatusOr<bool> FlagField(const Json& object, std::string_view where, const char* field) {
  const Json& value = object.at(field);
  if (!value.is_boolean())
    return JsonError(where, fmt::format("\"{}\" must be true or false", field));
  return value.get<bool>();
}

absl::StatusOr<const Json*> ListField(const Json& object, std::string_view where,
                                      const char* field) {
  const Json& value = object.at(field);
  if (!value.is_array()) return JsonError(where, fmt::format("\"{}\" must be a list [...]", field));
  return &value;
}

absl::StatusOr<std::vector<std::string>> TextList(const Json& list, std::string_view where) {
  if (!list.is_array()) return JsonError(where, "expected a list [...]");
  std::vector<std::string> texts;
  for (const Json& each : list) {
    if (!each.is_string()) return JsonError(where, "expected a list of strings");
    texts.push_back(each.get<std::string>());
  }
  return texts;
}

}  // namespace phub::checkpoint
