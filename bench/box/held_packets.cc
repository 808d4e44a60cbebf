#include "bench/box/held_packets.h"

#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <utility>

#include "common/base/check.h"
#include "common/base/errno_text.h"

namespace phub::bench {
namespace {

constexpr std::size_t kEthernet = 14;
constexpr std::size_t kIpMin = 20;

std::uint16_t Load16(std::span<const std::uint8_t> bytes, std::size_t at) {
  return static_cast<std::uint16_t>(bytes[at] << 8 | bytes[at + 1]);
}

// The sum of 16-bit numbers in network byte order; an odd byte at the end counts as the high one.
std::uint64_t Sum(std::span<const std::uint8_t> bytes) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i + 1 < bytes.size(); i += 2) sum += Load16(bytes, i);
  if (bytes.size() % 2 != 0) sum += static_cast<std::uint64_t>(bytes.back()) << 8;
  return sum;
}

}  // namespace

void FillChecksum(std::span<std::uint8_t> frame) {
  if (frame.size() < kEthernet + kIpMin || Load16(frame, 12) != ETH_P_IP) return;
  const std::span<std::uint8_t> ip = frame.subspan(kEthernet);
  const std::size_t ip_bytes = (ip[0] & 15u) * 4u;
  const std::size_t total = Load16(ip, 2);
  const std::uint8_t protocol = ip[9];
  const bool is_fragment = (Load16(ip, 6) & 0x3fff) != 0;
  if (is_fragment || total > ip.size() || total < ip_bytes || ip_bytes < kIpMin) return;
  const std::span<std::uint8_t> segment = ip.subspan(ip_bytes, total - ip_bytes);
  std::size_t at = 0;
  if (protocol == IPPROTO_UDP && segment.size() >= 8) at = 6;
  if (protocol == IPPROTO_TCP && segment.size() >= 20) at = 16;
  if (at == 0) return;
  if (protocol == IPPROTO_UDP && Load16(segment, at) == 0) return;  // it has none
  segment[at] = segment[at + 1] = 0;
  std::uint64_t sum = Sum(segment) + Sum(ip.subspan(12, 8)) + protocol + segment.size();
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  auto checksum = static_cast<std::uint16_t>(~sum);
  if (protocol == IPPROTO_UDP && checksum == 0) checksum = 0xffff;
  segment[at] = static_cast<std::uint8_t>(checksum >> 8);
  segment[at + 1] = static_cast<std::uint8_t>(checksum);
}

HeldPackets::HeldPackets() : socket_(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0)) {
  PHUB_CHECK(socket_, "cannot open a socket for frames: {}", ErrnoText(errno));
}

void HeldPackets::Add(const phub_box_packet& packet, TimeNs now) {
  const std::size_t length = std::min<std::size_t>(packet.length, sizeof packet.bytes);
  held_.emplace(now + static_cast<DurationNs>(packet.delay_ns),
                Held{packet.interface, {packet.bytes, packet.bytes + length}});
}

void HeldPackets::SendDue(TimeNs now) {
  while (!held_.empty() && held_.begin()->first <= now) {
    Held held = std::move(held_.begin()->second);
    held_.erase(held_.begin());
    FillChecksum(held.frame);
    sockaddr_ll to{};
    to.sll_family = AF_PACKET;
    to.sll_ifindex = static_cast<int>(held.interface);
    if (sendto(socket_.get(), held.frame.data(), held.frame.size(), MSG_DONTWAIT,
               reinterpret_cast<const sockaddr*>(&to), sizeof to) < 0)
      ++unsent_;
  }
}

DurationNs HeldPackets::Wait(TimeNs now) const {
  if (held_.empty()) return -1;
  return std::max<DurationNs>(held_.begin()->first - now, 0);
}

}  // namespace phub::bench
