#include "bench/rank/link_drain.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "bench/rank/arguments.h"

namespace phub::bench {
namespace {

// Few enough for an echo in Python to keep up with a gigabit, small enough that the last one is
// soon back.
constexpr std::size_t kDatagramBytes = 8192;
// So many are under way while others drain: what a bucket gains then, they take.
constexpr std::size_t kUnderWay = 4;
constexpr int kQuietMilliseconds = 200;
constexpr int kBufferBytes = 8 << 20;

sockaddr_in AddressOf(const std::string& echo) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  const std::size_t colon = echo.find(':');
  const unsigned long port =
      colon == std::string::npos ? 0 : std::strtoul(echo.c_str() + colon + 1, nullptr, 10);
  if (port == 0 || port > UINT16_MAX ||
      inet_pton(AF_INET, echo.substr(0, colon).c_str(), &address.sin_addr) != 1)
    Fail("--drain takes ADDRESS:PORT, not " + echo);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

}  // namespace

LinkDrain::LinkDrain(const std::string& echo, std::size_t bytes)
    : bytes_(bytes), socket_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  const sockaddr_in address = AddressOf(echo);
  // Whoever may shape a network may also have a large buffer.
  if (socket_ < 0 ||
      setsockopt(socket_, SOL_SOCKET, SO_RCVBUFFORCE, &kBufferBytes, sizeof kBufferBytes) != 0 ||
      setsockopt(socket_, SOL_SOCKET, SO_SNDBUFFORCE, &kBufferBytes, sizeof kBufferBytes) != 0 ||
      connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    Fail("--drain: no datagrams to " + echo + ": " + std::strerror(errno));
  datagram_.resize(kDatagramBytes);
}

LinkDrain::~LinkDrain() { close(socket_); }

void LinkDrain::Send(std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (send(socket_, datagram_.data(), datagram_.size(), 0) < 0)
      Fail(std::string("--drain: a datagram cannot be sent: ") + std::strerror(errno));
    ++under_way_;
  }
}

void LinkDrain::AwaitBack(std::size_t left) {
  pollfd item{socket_, POLLIN, 0};
  while (under_way_ > left) {
    if (poll(&item, 1, kQuietMilliseconds) <= 0)
      Fail("--drain: " + std::to_string(under_way_) + " datagrams did not come back");
    if (recv(socket_, datagram_.data(), datagram_.size(), 0) > 0) --under_way_;
  }
}

void LinkDrain::Drain(StartLine& line) {
  AwaitBack(0);  // the last time's
  Send(bytes_ / kDatagramBytes);
  AwaitBack(kUnderWay);
  line.Arrive();
  while (!line.all_there()) {
    AwaitBack(kUnderWay - 1);
    Send(1);
  }
}

}  // namespace phub::bench
