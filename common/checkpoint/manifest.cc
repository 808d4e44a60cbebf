#include "common/checkpoint/manifest.h"

#include <algorithm>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/checkpoint/checksum.h"
#include "common/checkpoint/metadata.h"
#include "common/checkpoint/strict_json.h"
#include "fmt/format.h"

namespace phub::checkpoint {
namespace {

constexpr std::string_view kFormat = "phub saved state";
constexpr const char* kOwnChecksum = "sha256";
constexpr std::string_view kDataFileStart = "state-";
constexpr std::string_view kDataFileEnd = ".safetensors";
constexpr std::size_t kNumberDigits = 8;
constexpr std::size_t kIterationDigitsMax = 20;

absl::Status CheckFormat(const Json& root) {
  const Json* const format =
      root.is_object() && root.contains("format") ? &root.at("format") : nullptr;
  if (format == nullptr || *format != kFormat)
    return JsonError("", "this is not the manifest of a phub checkpoint");
  const Json* const version =
      root.contains("format_version") ? &root.at("format_version") : nullptr;
  if (version == nullptr || !version->is_number_unsigned())
    return JsonError("", "\"format_version\" is missing");
  if (version->get<std::uint64_t>() != kFormatVersion)
    return JsonError("", fmt::format("the format version is {}; this phub reads version {}",
                                     version->get<std::uint64_t>(), kFormatVersion));
  return absl::OkStatus();
}

// Detects any change of a value: even one flipped bit makes the checksum differ or invalid.
absl::Status CheckOwnChecksum(const Json& root) {
  const absl::StatusOr<std::string> stated = TextField(root, "", kOwnChecksum);
  if (!stated.ok()) return stated.status();
  Json rest = root;
  rest.erase(kOwnChecksum);
  if (*stated != Sha256Of(rest.dump()))
    return JsonError("", "the content does not match its checksum: the file is damaged or edited");
  return absl::OkStatus();
}

absl::Status ReadDescription(const Json& root, CheckpointDescription& description) {
  auto job = TextField(root, "", "job");
  auto world_size = CountField(root, "", "world_size", kRanksMax);
  auto iteration = CountField(root, "", "iteration");
  auto phub_version = TextField(root, "", "phub_version");
  auto saved_at = CountField(root, "", "saved_at_unix_s");
  auto daemons = TextList(root.at("daemons"), "daemons");
  for (const absl::Status& status : {job.status(), world_size.status(), iteration.status(),
                                     phub_version.status(), saved_at.status(), daemons.status()}) {
    if (!status.ok()) return status;
  }
  description.job = *std::move(job);
  description.world_size = static_cast<std::uint32_t>(*world_size);
  description.iteration = *iteration;
  description.phub_version = *std::move(phub_version);
  description.saved_at_unix_s = *saved_at;
  description.daemons = *std::move(daemons);
  return CheckDescription(description);
}

absl::Status ReadDataFile(const Json& root, Manifest& manifest) {
  const Json& file = root.at("data_file");
  absl::Status status = CheckFields(file, "data_file", {"name", "bytes", "sha256"});
  if (!status.ok()) return status;
  auto name = TextField(file, "data_file", "name");
  auto bytes = CountField(file, "data_file", "bytes");
  auto sha256 = TextField(file, "data_file", "sha256");
  auto replaces = TextField(root, "", "replaces");
  for (const absl::Status& each :
       {name.status(), bytes.status(), sha256.status(), replaces.status()}) {
    if (!each.ok()) return each;
  }
  if (!IsDataFileName(*name))
    return JsonError("data_file", fmt::format("{} is not a valid data file name", Quoted(*name)));
  if (!IsSha256(*sha256)) return JsonError("data_file", "\"sha256\" is not a valid checksum");
  if (!replaces->empty() && (!IsDataFileName(*replaces) || *replaces == *name))
    return JsonError("replaces",
                     fmt::format("{} cannot be replaced: it is not the name of another data file",
                                 Quoted(*replaces)));
  manifest.data_file = *std::move(name);
  manifest.data_bytes = *bytes;
  manifest.data_sha256 = *std::move(sha256);
  manifest.replaces = *std::move(replaces);
  return absl::OkStatus();
}

absl::Status ReadTensors(const Json& root, Manifest& manifest) {
  const absl::StatusOr<const Json*> list = ListField(root, "", "tensors");
  if (!list.ok()) return list.status();
  for (const Json& each : **list) {
    const std::string where = fmt::format("tensors[{}]", manifest.tensors.size());
    absl::Status status = CheckFields(each, where, {"name", "sha256"});
    if (!status.ok()) return status;
    auto name = TextField(each, where, "name");
    auto sha256 = TextField(each, where, "sha256");
    if (!name.ok()) return name.status();
    if (!sha256.ok()) return sha256.status();
    if (!IsSha256(*sha256)) return JsonError(where, "\"sha256\" is not a valid checksum");
    manifest.tensors.push_back({*std::move(name), *std::move(sha256)});
  }
  return absl::OkStatus();
}

}  // namespace

std::string DataFileName(std::uint64_t iteration, std::uint32_t number) {
  return fmt::format("{}{}-{:08x}{}", kDataFileStart, iteration, number, kDataFileEnd);
}

bool IsDataFileName(std::string_view name) {
  if (!name.starts_with(kDataFileStart) || !name.ends_with(kDataFileEnd) ||
      name.size() <= kDataFileStart.size() + kDataFileEnd.size())
    return false;
  name.remove_prefix(kDataFileStart.size());
  name.remove_suffix(kDataFileEnd.size());
  const std::size_t dash = name.find('-');
  if (dash == std::string_view::npos || dash == 0 || dash > kIterationDigitsMax) return false;
  const std::string_view number = name.substr(dash + 1);
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return std::all_of(name.begin(), name.begin() + static_cast<std::ptrdiff_t>(dash), is_digit) &&
         number.size() == kNumberDigits && std::all_of(number.begin(), number.end(), [&](char c) {
           return is_digit(c) || (c >= 'a' && c <= 'f');
         });
}

std::string ManifestToJson(const Manifest& manifest) {
  const CheckpointDescription& description = manifest.description;
  Json tensors = Json::array();
  for (const TensorChecksum& tensor : manifest.tensors)
    tensors.push_back({{"name", tensor.name}, {"sha256", tensor.sha256}});
  Json root = {{"format", kFormat},
               {"format_version", kFormatVersion},
               {"job", description.job},
               {"world_size", description.world_size},
               {"iteration", description.iteration},
               {"phub_version", description.phub_version},
               {"saved_at_unix_s", description.saved_at_unix_s},
               {"daemons", description.daemons},
               {"data_file",
                {{"name", manifest.data_file},
                 {"bytes", manifest.data_bytes},
                 {"sha256", manifest.data_sha256}}},
               {"replaces", manifest.replaces},
               {"tensors", std::move(tensors)}};
  root[kOwnChecksum] = Sha256Of(root.dump());
  return root.dump(1) + "\n";
}

absl::StatusOr<Manifest> ParseManifest(std::string_view json) {
  const absl::StatusOr<Json> root = ParseStrictJson(json, kManifestBytesMax);
  if (!root.ok()) return root.status();
  absl::Status status = CheckFormat(*root);
  if (!status.ok()) return status;
  status =
      CheckFields(*root, "",
                  {"format", "format_version", "job", "world_size", "iteration", "phub_version",
                   "saved_at_unix_s", "daemons", "data_file", "replaces", "tensors", kOwnChecksum});
  if (status.ok()) status = CheckOwnChecksum(*root);
  Manifest manifest;
  if (status.ok()) status = ReadDescription(*root, manifest.description);
  if (status.ok()) status = ReadDataFile(*root, manifest);
  if (status.ok()) status = ReadTensors(*root, manifest);
  if (!status.ok()) return status;
  return manifest;
}

}  // namespace phub::checkpoint
