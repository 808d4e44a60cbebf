#include "bench/rank/datagrams.h"

#include <arpa/inet.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "bench/rank/arguments.h"

namespace phub::bench {
namespace {

constexpr int kBufferBytes = 64 << 20;  // holds the bursts of several workers until they are read
constexpr std::size_t kTogetherMax = 65536;  // the most that the kernel combines into one receive

[[noreturn]] void FailFor(const char* what) {
  Fail(std::string("datagrams: ") + what + ": " + std::strerror(errno));
}

void Set(int socket, int level, int name, int value, const char* what) {
  if (setsockopt(socket, level, name, &value, sizeof value) != 0) FailFor(what);
}

}  // namespace

sockaddr_in ParseAddress(const std::string& text, const std::string& what) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  const std::size_t colon = text.find(':');
  const unsigned long port =
      colon == std::string::npos ? 0 : std::strtoul(text.c_str() + colon + 1, nullptr, 10);
  if (port == 0 || port > UINT16_MAX ||
      inet_pton(AF_INET, text.substr(0, colon).c_str(), &address.sin_addr) != 1)
    Fail(what + ": '" + text + "' is not a valid ADDRESS:PORT");
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

// A process that may shape a network also has the privilege to force a large buffer.
Datagrams::Datagrams() : socket_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  if (socket_ < 0) FailFor("cannot create a socket");
  Set(socket_, SOL_SOCKET, SO_RCVBUFFORCE, kBufferBytes, "SO_RCVBUFFORCE");
  Set(socket_, SOL_SOCKET, SO_SNDBUFFORCE, kBufferBytes, "SO_SNDBUFFORCE");
  Set(socket_, SOL_UDP, UDP_SEGMENT, kDatagramBytes, "UDP_SEGMENT");
  Set(socket_, SOL_UDP, UDP_GRO, 1, "UDP_GRO");
  bytes_.resize(kTogetherMax);
}

Datagrams::~Datagrams() { close(socket_); }

void Datagrams::Bind(const sockaddr_in& address) {
  if (bind(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    FailFor("bind");
}

void Datagrams::Connect(const sockaddr_in& address) {
  if (connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    FailFor("connect");
}

void Datagrams::Send(std::size_t bytes, const sockaddr_in* to) {
  if (sendto(socket_, bytes_.data(), bytes, 0, reinterpret_cast<const sockaddr*>(to),
             to == nullptr ? 0 : sizeof *to) < 0)
    FailFor("cannot send");
}

std::size_t Datagrams::Receive(sockaddr_in* from) {
  socklen_t length = sizeof *from;
  const ssize_t got = recvfrom(socket_, bytes_.data(), bytes_.size(), 0,
                               reinterpret_cast<sockaddr*>(from), from ? &length : nullptr);
  return got > 0 ? static_cast<std::size_t>(got) : 0;
}

}  // namespace phub::bench
