#include "tests/support/http_client.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdlib>

namespace phub::testing {

Descriptor ConnectTo(std::uint16_t port) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    socket.Reset();
  return socket;
}

bool SendText(const Descriptor& socket, std::string_view text) {
  return send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(text.size());
}

std::string ReadToEnd(const Descriptor& socket, DurationNs timeout, bool* closed) {
  const SystemClock clock;
  const TimeNs deadline = clock.Now() + timeout;
  std::string text;
  if (closed != nullptr) *closed = false;
  for (;;) {
    const DurationNs left = deadline - clock.Now();
    pollfd readable{socket.get(), POLLIN, 0};
    if (left <= 0 || poll(&readable, 1, static_cast<int>(left / kMillisecond + 1)) != 1) break;
    std::array<char, 16384> piece;
    const ssize_t count = recv(socket.get(), piece.data(), piece.size(), 0);
    if (count <= 0) {
      if (closed != nullptr) *closed = count == 0 || errno == ECONNRESET;
      break;
    }
    text.append(piece.data(), static_cast<std::size_t>(count));
  }
  return text;
}

HttpAnswer AskHttp(std::uint16_t port, std::string_view request, DurationNs timeout) {
  const Descriptor socket = ConnectTo(port);
  HttpAnswer answer;
  if (!socket || !SendText(socket, request)) return answer;
  const std::string text = ReadToEnd(socket, timeout);
  const std::size_t end = text.find("\r\n\r\n");
  if (text.rfind("HTTP/1.1 ", 0) != 0 || end == std::string::npos) return answer;
  answer.code = std::atoi(text.c_str() + 9);
  answer.head = text.substr(0, end);
  answer.body = text.substr(end + 4);
  return answer;
}

HttpAnswer GetMetrics(std::uint16_t port, DurationNs timeout) {
  return AskHttp(port, "GET /metrics HTTP/1.1\r\nHost: phub\r\n\r\n", timeout);
}

}  // namespace phub::testing
