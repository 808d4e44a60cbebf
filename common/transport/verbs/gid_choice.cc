#include "common/transport/verbs/gid_choice.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>

namespace phub::transport {
namespace {

constexpr Gid kIpv4Prefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0, 0, 0, 0};
constexpr std::size_t kIpv4At = 12;

}  // namespace

const char* ToString(GidType type) {
  switch (type) {
    case GidType::kInfiniBand: return "InfiniBand";
    case GidType::kRoceV1: return "RoCE v1";
    case GidType::kRoceV2: return "RoCE v2";
  }
  return "unknown";
}

bool IsIpv4(const Gid& gid) {
  return std::equal(gid.begin(), gid.begin() + kIpv4At, kIpv4Prefix.begin());
}

bool IsLinkLocal(const Gid& gid) {
  if (IsIpv4(gid)) return gid[kIpv4At] == 169 && gid[kIpv4At + 1] == 254;
  return gid[0] == 0xFE && (gid[1] & 0xC0) == 0x80;
}

std::string GidText(const Gid& gid) {
  char text[INET6_ADDRSTRLEN] = {};
  if (IsIpv4(gid)) {
    inet_ntop(AF_INET, gid.data() + kIpv4At, text, sizeof text);
  } else {
    inet_ntop(AF_INET6, gid.data(), text, sizeof text);
  }
  return text;
}

std::optional<Gid> ParseGid(const std::string& text) {
  Gid gid = kIpv4Prefix;
  if (inet_pton(AF_INET, text.c_str(), gid.data() + kIpv4At) == 1) return gid;
  if (inet_pton(AF_INET6, text.c_str(), gid.data()) == 1) return gid;
  return std::nullopt;
}

unsigned CommonBits(const Gid& a, const Gid& b) {
  unsigned bits = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto differ = static_cast<std::uint8_t>(a[i] ^ b[i]);
    if (differ == 0) {
      bits += 8;
      continue;
    }
    return bits + static_cast<unsigned>(std::countl_zero(differ));
  }
  return bits;
}

std::optional<GidChoice> ChooseGid(std::span<const GidEntry> entries,
                                   const std::optional<Gid>& peer) {
  const auto rank = [&](const GidEntry& entry) {
    const bool roce = entry.type != GidType::kInfiniBand;
    return std::tuple(entry.type == GidType::kRoceV1, roce && IsLinkLocal(entry.gid),
                      roce && peer ? 128 - CommonBits(entry.gid, *peer) : 0u,
                      roce && !IsIpv4(entry.gid), entry.index);
  };
  const auto best =
      std::min_element(entries.begin(), entries.end(),
                       [&](const GidEntry& a, const GidEntry& b) { return rank(a) < rank(b); });
  if (best == entries.end()) return std::nullopt;
  std::string reason =
      fmt::format("{}, {}", ToString(best->type), IsIpv4(best->gid) ? "IPv4" : "IPv6");
  if (best->type == GidType::kInfiniBand) reason = "InfiniBand, the lowest index";
  if (best->type != GidType::kInfiniBand) {
    if (IsLinkLocal(best->gid)) reason += ", link-local: the port has no other address";
    if (peer) {
      reason += fmt::format(", {} leading bits in common with {}", CommonBits(best->gid, *peer),
                            GidText(*peer));
    }
  }
  return GidChoice{*best, std::move(reason)};
}

}  // namespace phub::transport
