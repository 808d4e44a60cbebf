#include "common/aggregation/endpoint_text.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <array>
#include <charconv>
#include <cstring>

#include "common/aggregation/datagram_socket.h"

namespace phub::aggregation {

absl::StatusOr<ParsedAddress> ParseAddress(std::string_view text) {
  const auto invalid = [&] {
    return absl::InvalidArgumentError(fmt::format(
        "\"{}\" is not a numeric address with a port, such as 10.0.0.1:7701 or [fd00::1]:7701",
        text.substr(0, 80)));
  };
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return invalid();
  std::string host(text.substr(0, colon));
  const std::string_view digits = text.substr(colon + 1);
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size()) return invalid();
  ParsedAddress parsed;
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(parsed.storage);
    host = host.substr(1, host.size() - 2);
    if (inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) != 1) return invalid();
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    parsed.bytes = sizeof v6;
    return parsed;
  }
  auto& v4 = reinterpret_cast<sockaddr_in&>(parsed.storage);
  if (inet_pton(AF_INET, host.c_str(), &v4.sin_addr) != 1) return invalid();
  v4.sin_family = AF_INET;
  v4.sin_port = htons(port);
  parsed.bytes = sizeof v4;
  return parsed;
}

absl::StatusOr<phub_endpoint> ParseEndpoint(std::string_view text) {
  const auto parsed = ParseAddress(text);
  if (!parsed.ok()) return parsed.status();
  return aggregation::EndpointOf(parsed->storage);
}

std::string TextOf(const phub_endpoint& endpoint) {
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(endpoint.address);
  static constexpr std::array<std::uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (std::memcmp(bytes, kMapped.data(), kMapped.size()) == 0) {
    inet_ntop(AF_INET, bytes + 12, text.data(), text.size());
    return fmt::format("{}:{}", text.data(), ntohs(endpoint.port));
  }
  inet_ntop(AF_INET6, bytes, text.data(), text.size());
  return fmt::format("[{}]:{}", text.data(), ntohs(endpoint.port));
}

}  // namespace phub::aggregation
