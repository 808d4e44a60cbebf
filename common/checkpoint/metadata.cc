#include "common/checkpoint/metadata.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "common/base/ids.h"
#include "common/base/status_text.h"
#include "common/checkpoint/strict_json.h"
#include "fmt/format.h"

namespace phub::checkpoint {
namespace {

using numeric::ElementType;
using Metadata = std::map<std::string, std::string>;

constexpr const char* kVersion = "phub.format_version";
constexpr const char* kJob = "phub.job";
constexpr const char* kWorldSize = "phub.world_size";
constexpr const char* kIteration = "phub.iteration";
constexpr const char* kPhubVersion = "phub.version";
constexpr const char* kSavedAt = "phub.saved_at_unix_s";
constexpr const char* kDaemons = "phub.daemons";
constexpr const char* kKeys = "phub.keys";

std::string TextOf(double value) {
  char text[32];
  const auto result = std::to_chars(text, text + sizeof text, value);
  return {text, result.ptr};
}

// Accepts only the canonical text of a number, which the writer produces.
template <typename Number>
bool ParseNumber(const std::string& text, Number& value) {
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end) return false;
  if constexpr (std::is_floating_point_v<Number>) {
    return std::isfinite(value) && TextOf(value) == text;
  } else {
    return std::to_string(value) == text;
  }
}

Json JsonOf(const SavedKey& key) {
  Json hyper_parameters = Json::object();
  for (const auto& [name, value] : key.hyper_parameters) hyper_parameters[name] = TextOf(value);
  Json optimizer_tensors = Json::array();
  for (const OptimizerTensor& tensor : key.optimizer_tensors)
    optimizer_tensors.push_back({{"name", tensor.name}, {"type", numeric::ToString(tensor.type)}});
  return {{"name", key.name},
          {"element_count", key.element_count},
          {"type", numeric::ToString(key.type)},
          {"gradient_type", numeric::ToString(key.gradient_type)},
          {"parameter_type", numeric::ToString(key.parameter_type)},
          {"operation", key.operation},
          {"optimizer", key.optimizer},
          {"hyper_parameters", std::move(hyper_parameters)},
          {"optimizer_tensors", std::move(optimizer_tensors)},
          {"optimizer_steps", key.optimizer_steps},
          {"iteration", key.iteration},
          {"record_version", key.record_version},
          {"initialized", key.initialized}};
}

// Reads the fields of one object. After the first error it ignores the rest.
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  void Check(std::initializer_list<std::string_view> names) {
    status_ = CheckFields(object_, where_, names);
  }
  void Text(const char* field, std::string& value) {
    Take(value, [&] { return TextField(object_, where_, field); });
  }
  void Count(const char* field, std::uint64_t& value) {
    Take(value, [&] { return CountField(object_, where_, field); });
  }
  void Flag(const char* field, bool& value) {
    Take(value, [&] { return FlagField(object_, where_, field); });
  }
  void Type(const char* field, ElementType& value) {
    std::string name;
    Text(field, name);
    if (!status_.ok()) return;
    if (const auto type = numeric::ParseElementType(name)) {
      value = *type;
    } else {
      Fail(fmt::format("\"{}\": unknown type {}", field, Quoted(name)));
    }
  }
  void Fail(std::string_view what) { status_ = JsonError(where_, what); }
  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }

 private:
  template <typename Value, typename Read>
  void Take(Value& value, Read read) {
    if (!status_.ok()) return;
    auto result = read();
    status_ = result.status();
    if (result.ok()) value = *std::move(result);
  }

  const Json& object_;
  std::string where_;
  absl::Status status_;
};

void ReadHyperParameters(Fields& fields, const Json& values, SavedKey& key) {
  if (!values.is_object()) return fields.Fail("\"hyper_parameters\" must be an object {...}");
  for (const auto& item : values.items()) {
    double value = 0.0;
    if (!item.value().is_string() || !ParseNumber(item.value().get<std::string>(), value))
      return fields.Fail(
          fmt::format("hyper-parameter {} is not a valid number", Quoted(item.key())));
    key.hyper_parameters[item.key()] = value;
  }
}

absl::Status ReadOptimizerTensors(const Json& list, const std::string& where, SavedKey& key) {
  if (!list.is_array()) return JsonError(where, "\"optimizer_tensors\" must be a list [...]");
  for (const Json& each : list) {
    OptimizerTensor& tensor = key.optimizer_tensors.emplace_back();
    Fields fields(each, where + ", optimizer_tensors");
    fields.Check({"name", "type"});
    fields.Text("name", tensor.name);
    fields.Type("type", tensor.type);
    if (!fields.ok()) return fields.status();
  }
  return absl::OkStatus();
}

absl::StatusOr<SavedKey> KeyOf(const Json& object, std::size_t index) {
  const std::string where = fmt::format("{}[{}]", kKeys, index);
  SavedKey key;
  std::uint64_t record_version = 0;
  Fields fields(object, where);
  fields.Check({"name", "element_count", "type", "gradient_type", "parameter_type", "operation",
                "optimizer", "hyper_parameters", "optimizer_tensors", "optimizer_steps",
                "iteration", "record_version", "initialized"});
  fields.Text("name", key.name);
  fields.Count("element_count", key.element_count);
  fields.Type("type", key.type);
  fields.Type("gradient_type", key.gradient_type);
  fields.Type("parameter_type", key.parameter_type);
  fields.Text("operation", key.operation);
  fields.Text("optimizer", key.optimizer);
  fields.Count("optimizer_steps", key.optimizer_steps);
  fields.Count("iteration", key.iteration);
  fields.Count("record_version", record_version);
  fields.Flag("initialized", key.initialized);
  if (fields.ok() && record_version > HyperVersion::Max().value)
    fields.Fail(fmt::format("\"record_version\" is {}; at most {} is allowed", record_version,
                            HyperVersion::Max().value));
  if (fields.ok()) ReadHyperParameters(fields, object.at("hyper_parameters"), key);
  if (!fields.ok()) return fields.status();
  key.record_version = static_cast<std::uint32_t>(record_version);
  absl::Status status = ReadOptimizerTensors(object.at("optimizer_tensors"), where, key);
  if (!status.ok()) return status;
  return key;
}

absl::StatusOr<std::vector<SavedKey>> KeysOf(const std::string& text) {
  const absl::StatusOr<Json> list = ParseStrictJson(text, kHeaderBytesMax);
  if (!list.ok()) return JsonError(kKeys, MessageOf(list.status()));
  if (!list->is_array()) return JsonError(kKeys, "expected a list [...]");
  std::vector<SavedKey> keys;
  for (const Json& object : *list) {
    absl::StatusOr<SavedKey> key = KeyOf(object, keys.size());
    if (!key.ok()) return key.status();
    keys.push_back(*std::move(key));
  }
  return keys;
}

absl::StatusOr<std::vector<std::string>> DaemonsOf(const std::string& text) {
  const absl::StatusOr<Json> list = ParseStrictJson(text, kHeaderBytesMax);
  if (!list.ok()) return JsonError(kDaemons, MessageOf(list.status()));
  return TextList(*list, kDaemons);
}

// Checks that all required names are present and no others.
absl::Status CheckNames(const Metadata& metadata) {
  constexpr std::array kNames = {kVersion,     kJob,     kWorldSize, kIteration,
                                 kPhubVersion, kSavedAt, kDaemons,   kKeys};
  for (const char* name : kNames) {
    if (!metadata.contains(name))
      return JsonError("", fmt::format("{} is missing in the file's metadata", name));
  }
  for (const auto& [name, value] : metadata) {
    if (std::find(kNames.begin(), kNames.end(), name) == kNames.end())
      return JsonError("", fmt::format("unknown metadata {}", Quoted(name)));
  }
  return absl::OkStatus();
}

absl::Status CheckTensors(const CheckpointDescription& description,
                          const SafetensorsHeader& header) {
  std::map<std::string_view, const PlacedTensor*> placed;
  for (const PlacedTensor& tensor : header.tensors) placed[tensor.name] = &tensor;
  const std::vector<TensorDescription> expected = TensorsOf(description);
  for (const TensorDescription& tensor : expected) {
    const auto found = placed.find(tensor.name);
    const std::string where = fmt::format("tensor {}", Quoted(tensor.name));
    if (found == placed.end()) return JsonError(where, "it is missing in the file");
    const PlacedTensor& its = *found->second;
    if (its.type != tensor.type || its.shape.size() != 1 || its.shape[0] != tensor.element_count)
      return JsonError(where, fmt::format("it must have one dimension of {} elements of {}",
                                          tensor.element_count, numeric::ToString(tensor.type)));
    placed.erase(found);
  }
  if (placed.empty()) return absl::OkStatus();
  return JsonError(fmt::format("tensor {}", Quoted(placed.begin()->first)),
                   "it does not belong to any key of the checkpoint");
}

}  // namespace

SafetensorsHeader HeaderOf(const CheckpointDescription& description) {
  Json keys = Json::array();
  for (const SavedKey& key : description.keys) keys.push_back(JsonOf(key));
  SafetensorsHeader header;
  header.metadata[kVersion] = std::to_string(kFormatVersion);
  header.metadata[kJob] = description.job;
  header.metadata[kWorldSize] = std::to_string(description.world_size);
  header.metadata[kIteration] = std::to_string(description.iteration);
  header.metadata[kPhubVersion] = description.phub_version;
  header.metadata[kSavedAt] = std::to_string(description.saved_at_unix_s);
  header.metadata[kDaemons] = Json(description.daemons).dump();
  header.metadata[kKeys] = keys.dump();
  header.tensors = PlaceTensors(TensorsOf(description));
  return header;
}

absl::StatusOr<CheckpointDescription> DescriptionOf(const SafetensorsHeader& header) {
  const Metadata& metadata = header.metadata;
  if (!metadata.contains(kVersion))
    return JsonError("", "this safetensors file is not a phub checkpoint");
  if (metadata.at(kVersion) != std::to_string(kFormatVersion))
    return JsonError("", fmt::format("the format version is {}; this phub reads version {}",
                                     Quoted(metadata.at(kVersion)), kFormatVersion));
  if (absl::Status status = CheckNames(metadata); !status.ok()) return status;
  CheckpointDescription description;
  description.job = metadata.at(kJob);
  description.phub_version = metadata.at(kPhubVersion);
  const auto number = [&](const char* name, auto& value) {
    if (ParseNumber(metadata.at(name), value)) return absl::OkStatus();
    return JsonError(name, Quoted(metadata.at(name)) + " is not a valid number");
  };
  absl::Status status = number(kWorldSize, description.world_size);
  if (status.ok()) status = number(kIteration, description.iteration);
  if (status.ok()) status = number(kSavedAt, description.saved_at_unix_s);
  if (!status.ok()) return status;
  auto daemons = DaemonsOf(metadata.at(kDaemons));
  if (!daemons.ok()) return daemons.status();
  description.daemons = *std::move(daemons);
  auto keys = KeysOf(metadata.at(kKeys));
  if (!keys.ok()) return keys.status();
  description.keys = *std::move(keys);
  status = CheckDescription(description);
  if (status.ok()) status = CheckTensors(description, header);
  if (!status.ok()) return status;
  return description;
}

}  // namespace phub::checkpoint
