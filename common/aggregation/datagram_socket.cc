#include "common/aggregation/datagram_socket.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/udp.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <tuple>

#include "common/base/errno_text.h"

namespace phub::aggregation {
namespace {

constexpr std::size_t kMessages = 32;  // of one call
constexpr std::size_t kMessageBytes = 65536;
// The kernel's limits of one message that it cuts (UDP_MAX_SEGMENTS of old kernels; 65535 bytes
// with IP and UDP headers).
constexpr std::size_t kSegmentsMax = 64;
constexpr std::size_t kBurstBytesMax = 65000;
constexpr int kBufferBytes = 8 << 20;  // the kernel grants at most its net.core.rmem_max
constexpr std::uint64_t kMappedPrefixBytes = 10;

union Control {
  cmsghdr aligned;
  std::array<char, CMSG_SPACE(sizeof(int))> bytes;
};

std::size_t SegmentBytes(msghdr& message, std::size_t length) {
  for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr;
       each = CMSG_NXTHDR(&message, each)) {
    if (each->cmsg_level != SOL_UDP || each->cmsg_type != UDP_GRO) continue;
    int segment = 0;
    std::memcpy(&segment, CMSG_DATA(each), sizeof segment);
    if (segment > 0) return static_cast<std::size_t>(segment);
  }
  return std::max<std::size_t>(length, 1);
}

void SetSegment(msghdr& message, Control& control, std::size_t length) {
  message.msg_control = &control;
  message.msg_controllen = CMSG_SPACE(sizeof(std::uint16_t));
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_UDP;
  header->cmsg_type = UDP_SEGMENT;
  header->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
  const auto segment = static_cast<std::uint16_t>(length);
  std::memcpy(CMSG_DATA(header), &segment, sizeof segment);
}

auto Order(const phub_endpoint& to) { return std::tuple(to.address[0], to.address[1], to.port); }

}  // namespace

phub_endpoint EndpointOf(const sockaddr_storage& address) {
  phub_endpoint endpoint{};
  auto* const bytes = reinterpret_cast<std::uint8_t*>(endpoint.address);
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    std::memset(bytes + kMappedPrefixBytes, 0xff, 2);
    std::memcpy(bytes + kMappedPrefixBytes + 2, &v4.sin_addr, 4);
    endpoint.port = v4.sin_port;
  } else {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    std::memcpy(bytes, &v6.sin6_addr, 16);
    endpoint.port = v6.sin6_port;
  }
  return endpoint;
}

absl::StatusOr<DatagramSocket> DatagramSocket::Bind(const sockaddr_storage& address,
                                                    socklen_t bytes) {
  DatagramSocket bound;
  const phub_endpoint wanted = EndpointOf(address);
  static constexpr std::array<std::uint8_t, 4> kAny4{};
  const auto* const raw = reinterpret_cast<const std::uint8_t*>(wanted.address);
  bound.is_ipv4_ = address.ss_family == AF_INET;
  if (bound.is_ipv4_ ? std::memcmp(raw + 12, kAny4.data(), 4) == 0
                     : wanted.address[0] == 0 && wanted.address[1] == 0) {
    return absl::InvalidArgumentError(
        "the address of datagrams must be one address of this host, not all of them: peers accept "
        "answers only from the address that they send to");
  }
  bound.socket_ =
      Descriptor(socket(address.ss_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int socket = bound.socket_.get();
  if (socket < 0 || bind(socket, reinterpret_cast<const sockaddr*>(&address), bytes) != 0)
    return absl::UnavailableError(fmt::format("cannot bind a UDP socket: {}", ErrnoText(errno)));
  const int on = 1;
  const int none = 0;
  setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &kBufferBytes, sizeof kBufferBytes);
  setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &kBufferBytes, sizeof kBufferBytes);
  bound.joins_ = setsockopt(socket, SOL_UDP, UDP_GRO, &on, sizeof on) == 0;
  bound.cuts_ = setsockopt(socket, SOL_UDP, UDP_SEGMENT, &none, sizeof none) == 0;
  sockaddr_storage own{};
  socklen_t own_bytes = sizeof own;
  getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_bytes);
  bound.endpoint_ = EndpointOf(own);
  bound.received_.resize(kMessages * kMessageBytes);
  return bound;
}

std::size_t DatagramSocket::Receive(const Handler& handle) {
  std::array<mmsghdr, kMessages> messages{};
  std::array<sockaddr_storage, kMessages> sources;
  std::array<iovec, kMessages> parts;
  std::array<Control, kMessages> controls;
  for (std::size_t i = 0; i < kMessages; ++i) {
    parts[i] = {received_.data() + i * kMessageBytes, kMessageBytes};
    msghdr& header = messages[i].msg_hdr;
    header.msg_name = &sources[i];
    header.msg_namelen = sizeof sources[i];
    header.msg_iov = &parts[i];
    header.msg_iovlen = 1;
    header.msg_control = &controls[i];
    header.msg_controllen = sizeof controls[i];
  }
  const int count = recvmmsg(socket_.get(), messages.data(), kMessages, MSG_DONTWAIT, nullptr);
  ++counts_.receive_calls;
  if (count <= 0) return 0;  // also errors of the network that earlier datagrams caused
  std::size_t datagrams = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    const phub_endpoint source = EndpointOf(sources[i]);
    const std::size_t length = messages[i].msg_len;
    const std::size_t segment = SegmentBytes(messages[i].msg_hdr, length);
    const std::uint8_t* const begin = received_.data() + i * kMessageBytes;
    std::size_t at = 0;
    do {  // an empty datagram is one, too
      const std::size_t take = std::min(segment, length - at);
      handle({begin + at, take}, source);
      ++datagrams;
      at += take;
    } while (at < length);
    counts_.received_bytes += length;
  }
  counts_.received += datagrams;
  return datagrams;
}

void DatagramSocket::Queue(const phub_endpoint& to, std::span<const std::uint8_t> header,
                           std::span<const std::uint8_t> payload) {
  queue_.push_back({to, bytes_.size(), header.size() + payload.size()});
  bytes_.insert(bytes_.end(), header.begin(), header.end());
  bytes_.insert(bytes_.end(), payload.begin(), payload.end());
}

bool DatagramSocket::CanJoin(const Burst& burst, const Queued& next, std::size_t bytes) const {
  const Queued& first = queue_[burst.first];
  const Queued& last = queue_[burst.first + burst.count - 1];
  if (next.length == 0) return false;  // the kernel would cut no datagram from it
  return cuts_ && burst.count < kSegmentsMax && bytes + next.length <= kBurstBytesMax &&
         phub_endpoint_equals(&first.to, &next.to) && last.length == first.length &&
         next.length <= first.length;
}

void DatagramSocket::Cut() {
  std::ranges::stable_sort(queue_, {}, [](const Queued& each) { return Order(each.to); });
  bursts_.clear();
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < queue_.size(); ++i) {
    if (!bursts_.empty() && CanJoin(bursts_.back(), queue_[i], bytes)) {
      ++bursts_.back().count;
      bytes += queue_[i].length;
    } else {
      bursts_.push_back({i, 1});
      bytes = queue_[i].length;
    }
  }
}

void DatagramSocket::Flush() {
  if (queue_.empty()) return;
  Cut();
  Send();
  queue_.clear();
  bytes_.clear();
}

void DatagramSocket::Send() {
  std::vector<iovec> parts(queue_.size());
  for (std::size_t i = 0; i < queue_.size(); ++i)
    parts[i] = {bytes_.data() + queue_[i].begin, queue_[i].length};
  std::array<mmsghdr, kMessages> messages;
  std::array<sockaddr_storage, kMessages> addresses;
  std::array<Control, kMessages> controls;
  std::size_t at = 0;
  while (at < bursts_.size()) {
    const std::size_t count = std::min(kMessages, bursts_.size() - at);
    for (std::size_t i = 0; i < count; ++i) {
      const Burst& burst = bursts_[at + i];
      messages[i] = {};
      msghdr& header = messages[i].msg_hdr;
      header.msg_name = &addresses[i];
      header.msg_namelen = AddressOf(queue_[burst.first].to, addresses[i]);
      header.msg_iov = &parts[burst.first];
      header.msg_iovlen = burst.count;
      if (burst.count > 1) SetSegment(header, controls[i], queue_[burst.first].length);
    }
    const int sent =
        sendmmsg(socket_.get(), messages.data(), static_cast<unsigned>(count), MSG_DONTWAIT);
    ++counts_.send_calls;
    const auto done = static_cast<std::size_t>(std::max(sent, 0));
    for (std::size_t i = 0; i < done; ++i) {
      counts_.sent += bursts_[at + i].count;
      counts_.sent_bytes += messages[i].msg_len;
    }
    at += done;
    if (done == count) continue;
    const Burst refused = bursts_[at];
    // Some paths, such as devices without checksum offload, refuse to cut: EIO, EINVAL.
    if (sent < 0 && refused.count > 1 && (errno == EIO || errno == EINVAL)) {
      cuts_ = false;
      queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(refused.first));
      Cut();
      return Send();
    }
    if (sent >= 0) continue;  // the kernel reports the error at the next call
    counts_.sends_failed += refused.count;
    ++at;
  }
}

socklen_t DatagramSocket::AddressOf(const phub_endpoint& endpoint,
                                    sockaddr_storage& address) const {
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(endpoint.address);
  address = {};
  if (is_ipv4_) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(address);
    v4.sin_family = AF_INET;
    v4.sin_port = endpoint.port;
    std::memcpy(&v4.sin_addr, bytes + 12, 4);
    return sizeof v4;
  }
  auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
  v6.sin6_family = AF_INET6;
  v6.sin6_port = endpoint.port;
  std::memcpy(&v6.sin6_addr, bytes, 16);
  return sizeof v6;
}

}  // namespace phub::aggregation
