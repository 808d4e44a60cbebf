#include "common/transport/verbs/device_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>

#include "absl/strings/str_split.h"

namespace phub::transport {
namespace {

template <typename Number>
bool Read(std::string_view text, Number& number) {
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stopped == end;
}

bool ReadDevice(std::string_view text, VerbsDeviceOptions& device) {
  const std::vector<std::string> parts = absl::StrSplit(std::string(text), ':');
  if (parts.empty() || parts.size() > 3 || parts[0].empty()) return false;
  device.name = parts[0];
  if (parts.size() > 1 && (!Read(parts[1], device.port) || device.port == 0)) return false;
  return parts.size() < 3 || Read(parts[2], device.gid_index.emplace());
}

}  // namespace

absl::StatusOr<std::vector<VerbsDeviceOptions>> ParseVerbsDevices(std::string_view text) {
  std::vector<VerbsDeviceOptions> devices;
  for (const std::string& item : std::vector<std::string>(absl::StrSplit(std::string(text), ','))) {
    VerbsDeviceOptions device;
    if (!ReadDevice(item, device)) {
      return absl::InvalidArgumentError(fmt::format(
          "'{}' does not name an RDMA device; write NAME, NAME:PORT or NAME:PORT:GID_INDEX, such "
          "as mlx5_0:1:3",
          item));
    }
    const bool twice = std::ranges::any_of(devices, [&](const VerbsDeviceOptions& other) {
      return other.name == device.name &&
             (other.port == device.port || other.port == 0 || device.port == 0);
    });
    if (twice) {
      return absl::InvalidArgumentError(
          fmt::format("RDMA device {} is named twice for the same port; name it once, or name two "
                      "of its ports",
                      device.name));
    }
    devices.push_back(std::move(device));
  }
  return devices;
}

}  // namespace phub::transport
