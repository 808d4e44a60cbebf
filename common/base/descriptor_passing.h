// Passes descriptors over a Unix socket of type SOCK_SEQPACKET. Neither function blocks, even if
// the socket is in blocking mode. Any thread.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "common/base/descriptor.h"

namespace phub {

inline constexpr std::size_t kDescriptorsPerPacket = 4;

// Sends one packet. On failure returns false and sets errno: EAGAIN if the socket is full.
bool SendPacket(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors);

struct ReceivedPacket {
  // Size of the packet, even if the buffer was shorter. 0: the peer closed. Negative: -errno.
  std::ptrdiff_t bytes = 0;
  std::array<Descriptor, kDescriptorsPerPacket> descriptors;  // close-on-exec
  std::size_t descriptor_count = 0;
  // The peer sent more: more than kDescriptorsPerPacket, or this process has no room for them
  // (RLIMIT_NOFILE).
  bool descriptors_lost = false;
};
// The kernel closes descriptors beyond kDescriptorsPerPacket.
ReceivedPacket ReceivePacket(int socket, std::span<std::byte> buffer);

}  // namespace phub
