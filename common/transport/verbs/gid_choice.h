// Chooses which of a port's addresses (GIDs) lanes use. Pure; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace phub::transport {

using Gid = std::array<std::uint8_t, 16>;

enum class GidType : std::uint8_t { kInfiniBand, kRoceV1, kRoceV2 };
const char* ToString(GidType type);

struct GidEntry {
  std::uint32_t index = 0;
  GidType type = GidType::kRoceV2;
  Gid gid{};
};

std::string GidText(const Gid& gid);  // "10.0.0.1" for an IPv4 address, otherwise IPv6
std::optional<Gid> ParseGid(const std::string& text);
bool IsIpv4(const Gid& gid);
bool IsLinkLocal(const Gid& gid);
// Number of equal leading bits. Ports in one subnet have more in common than others.
unsigned CommonBits(const Gid& a, const Gid& b);

struct GidChoice {
  GidEntry entry;
  std::string reason;  // why it was chosen, for the log
};
// On RoCE, the criteria in order are: version 2 before version 1 (which routers do not forward),
// global before link-local addresses, most leading bits in common with `peer`, IPv4 before IPv6,
// lowest index. On InfiniBand: lowest index. Empty if there is no address.
std::optional<GidChoice> ChooseGid(std::span<const GidEntry> entries,
                                   const std::optional<Gid>& peer);

}  // namespace phub::transport
