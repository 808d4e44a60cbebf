#include "common/base/descriptor_passing.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>

#include "common/base/check.h"

namespace phub {
namespace {

constexpr std::size_t kControlBytes = CMSG_SPACE(kDescriptorsPerPacket * sizeof(int));

}  // namespace

bool SendPacket(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors) {
  PHUB_CHECK(descriptors.size() <= kDescriptorsPerPacket, "descriptors={}", descriptors.size());
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};  // sendmsg only reads it
  alignas(cmsghdr) char control[kControlBytes] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(head), descriptors.data(), descriptors.size_bytes());
  }
  ssize_t put = 0;
  do {
    put = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (put < 0 && errno == EINTR);
  return put >= 0;
}

ReceivedPacket ReceivePacket(int socket, std::span<std::byte> buffer) {
  ReceivedPacket packet;
  iovec part{buffer.data(), buffer.size()};
  alignas(cmsghdr) char control[kControlBytes];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got = 0;
  do {
    got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_TRUNC);
  } while (got < 0 && errno == EINTR);
  packet.bytes = got < 0 ? -errno : got;
  if (got < 0) return packet;
  packet.descriptors_lost = (message.msg_flags & MSG_CTRUNC) != 0;
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(head) + i * sizeof(int), sizeof descriptor);
      Descriptor owned(descriptor);
      if (packet.descriptor_count == kDescriptorsPerPacket) continue;
      packet.descriptors[packet.descriptor_count++] = std::move(owned);
    }
  }
  return packet;
}

}  // namespace phub
