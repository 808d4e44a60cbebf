#include "server/front/accepted_socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "common/base/descriptor.h"

namespace phub::server {
namespace {

using net::SocketAddress;

// A ClientHello has about 500 bytes, or 2 KiB with post-quantum keys. The client sends nothing more
// until it is answered.
constexpr int kFirstBytesMax = 16 * 1024;
constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr std::size_t kRecordHeaderBytes = 5;
constexpr unsigned char kHandshakeRecord = 0x16;
constexpr unsigned char kRecordVersionMajor = 3;
static_assert(kPreface.size() == 24);

FirstMessage LookAtTls(const unsigned char* bytes, std::size_t size, int available) {
  if (bytes[0] != kHandshakeRecord || (size > 1 && bytes[1] != kRecordVersionMajor)) {
    return FirstMessage::kBad;
  }
  if (size < kRecordHeaderBytes) return FirstMessage::kMore;
  const int whole = static_cast<int>(kRecordHeaderBytes) + bytes[3] * 256 + bytes[4];
  if (whole > kFirstBytesMax) return FirstMessage::kBad;
  return available >= whole ? FirstMessage::kWhole : FirstMessage::kMore;
}

}  // namespace

FirstMessage LookAtFirstMessage(int socket, bool tls) {
  unsigned char bytes[kPreface.size()];
  const ssize_t got = recv(socket, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EINTR ? FirstMessage::kMore : FirstMessage::kGone;
  if (got == 0) return FirstMessage::kGone;
  int available = 0;
  if (ioctl(socket, FIONREAD, &available) != 0 || available > kFirstBytesMax)
    return FirstMessage::kBad;
  const auto size = static_cast<std::size_t>(got);
  if (tls) return LookAtTls(bytes, size, available);
  const std::string_view seen(reinterpret_cast<const char*>(bytes), size);
  if (!kPreface.starts_with(seen)) return FirstMessage::kBad;
  return size == kPreface.size() ? FirstMessage::kWhole : FirstMessage::kMore;
}

std::uint64_t CookieOf(int socket) {
  std::uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  return getsockopt(socket, SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0 ? cookie : 0;
}

void ShutDown(int number, std::uint64_t cookie) {
  if (CookieOf(number) != cookie) return;
  // The number may be reused by another socket at any time, so the cookie is checked again on a
  // duplicate.
  const Descriptor same(fcntl(number, F_DUPFD_CLOEXEC, 0));
  if (same && CookieOf(same.get()) == cookie) shutdown(same.get(), SHUT_RDWR);
}

PeerText PeerTextOf(SocketAddress address) {
  if (address.storage.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
      sockaddr_in v4{};
      v4.sin_family = AF_INET;
      v4.sin_port = v6.sin6_port;
      std::copy_n(v6.sin6_addr.s6_addr + 12, 4, reinterpret_cast<std::uint8_t*>(&v4.sin_addr));
      address = {};
      address.bytes = sizeof v4;
      std::copy_n(reinterpret_cast<const char*>(&v4), sizeof v4,
                  reinterpret_cast<char*>(&address.storage));
    }
  }
  PeerText text{.address = net::AddressText(address), .peer = {}};
  // gRPC writes an interface (IPv6 scope) as a number.
  std::string numeric = text.address.substr(0, text.address.find('%'));
  if (address.storage.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
    if (v6.sin6_scope_id != 0) numeric += fmt::format("%{}", v6.sin6_scope_id);
  }
  text.peer = net::HostPort(numeric, net::PortOf(address));
  return text;
}

}  // namespace phub::server
