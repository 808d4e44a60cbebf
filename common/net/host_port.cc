#include "common/net/host_port.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace phub::net {
namespace {

constexpr std::size_t kBlockBytesV6 = 8;  // a /64

}  // namespace

absl::StatusOr<HostAndPort> ParseHostAndPort(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos)
    return absl::InvalidArgumentError("has no port; write address:port, like \"127.0.0.1:7700\"");
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return absl::InvalidArgumentError("needs brackets around an IPv6 address, like \"[::1]:7700\"");
  }
  if (host.empty())
    return absl::InvalidArgumentError(
        "has no host; write \"127.0.0.1:port\", or \"0.0.0.0:port\" for all interfaces");
  HostAndPort parsed{.host = std::string(host), .port = 0};
  const char* const last = digits.data() + digits.size();
  const auto [end, error] = std::from_chars(digits.data(), last, parsed.port);
  if (error != std::errc() || end != last)
    return absl::InvalidArgumentError(
        fmt::format("has the port \"{}\"; a port is a number from 0 to 65535", digits));
  return parsed;
}

std::string HostPort(const std::string& host, std::uint16_t port) {
  const bool brackets = host.find(':') != std::string::npos;
  return brackets ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

std::string AddressBlock(std::string_view address) {
  const absl::StatusOr<HostAndPort> with_port = ParseHostAndPort(address);
  std::string host = with_port.ok() ? with_port->host : std::string(address);
  in6_addr v6{};
  // Link-local addresses have a scope: "fe80::1%eth0".
  if (inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &v6) != 1) return host;
  if (IN6_IS_ADDR_V4MAPPED(&v6)) return host;
  std::fill(v6.s6_addr + kBlockBytesV6, v6.s6_addr + sizeof v6.s6_addr, std::uint8_t{0});
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(AF_INET6, &v6, text.data(), text.size());
  return fmt::format("{}/64", text.data());
}

bool IsNumeric(const std::string& host) {
  in6_addr address{};  // large enough for both
  return inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

bool IsLoopbackHost(std::string_view host) {
  if (host == "localhost") return true;
  const std::string text(host);
  in_addr ipv4{};
  if (inet_pton(AF_INET, text.c_str(), &ipv4) == 1) return (ntohl(ipv4.s_addr) >> 24) == 127;
  in6_addr ipv6{};
  return inet_pton(AF_INET6, text.c_str(), &ipv6) == 1 && IN6_IS_ADDR_LOOPBACK(&ipv6);
}

}  // namespace phub::net
