// Descriptors through a Unix socket that keeps packets apart (SOCK_SEQPACKET). Neither call blocks,
// whatever mode the socket is in. Any thread.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "common/base/descriptor.h"

namespace phub {

inline constexpr std::size_t kDescriptorsPerPacket = 4;

// One packet. False with errno set: EAGAIN if the socket is full.
bool SendPacket(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors);

struct ReceivedPacket {
  // Of the packet, even if the buffer was shorter. 0: the peer closed. Negative: -errno.
  std::ptrdiff_t bytes = 0;
  std::array<Descriptor, kDescriptorsPerPacket> descriptors;  // close-on-exec
  std::size_t descriptor_count = 0;
};
// Descriptors beyond kDescriptorsPerPacket are closed by the kernel.
ReceivedPacket ReceivePacket(int socket, std::span<std::byte> buffer);

}  // namespace phub
