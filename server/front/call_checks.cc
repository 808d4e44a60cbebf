#include "server/front/call_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "server/front/front_limits.h"

namespace phub::server {
namespace {

constexpr std::uint32_t kResourceExhausted = 8;
constexpr std::uint32_t kUnimplemented = 12;
constexpr std::string_view kContentType = "application/grpc";
constexpr std::size_t kPrefixBytes = 5;  // before each gRPC message: a flag and the size
constexpr char kServiceField = '\x0a';   // field 1, a string
constexpr std::size_t kServiceBytesMax = 100;
constexpr std::array<std::string_view, 2> kIdentityPrefixes = {"phub-", "x-forwarded-"};
constexpr std::array<std::string_view, 3> kIdentityNames = {"forwarded", "x-real-ip",
                                                            "x-client-cert"};

// gRPC's encoding of messages in headers.
std::string PercentEncoded(std::string_view text) {
  std::string encoded;
  for (const char each : text) {
    if (each >= ' ' && each <= '~' && each != '%') {
      encoded += each;
    } else {
      encoded += fmt::format("%{:02X}", static_cast<unsigned char>(each));
    }
  }
  return encoded;
}

bool NamesCaller(std::string_view name) {
  return std::ranges::find(kIdentityNames, name) != kIdentityNames.end() ||
         std::ranges::any_of(kIdentityPrefixes,
                             [&](std::string_view each) { return name.starts_with(each); });
}

}  // namespace

HeaderList AnswerHeaders() { return {{":status", "200"}, {"content-type", "application/grpc"}}; }

HeaderList StatusTrailers(std::uint32_t code) { return {{"grpc-status", std::to_string(code)}}; }

HeaderList RefusalHeaders(std::uint32_t code, std::string_view message) {
  HeaderList headers = AnswerHeaders();
  headers.emplace_back("grpc-status", std::to_string(code));
  headers.emplace_back("grpc-message", PercentEncoded(message));
  return headers;
}

std::optional<HeaderList> RefusalOf(const ReceivedHeaders& received) {
  if (received.too_large) {
    return RefusalHeaders(kResourceExhausted,
                          fmt::format("the call's headers exceed {} bytes", kHeaderListBytesMax));
  }
  const HeaderList& headers = received.list;
  if (FindHeader(headers, ":method") != "POST" ||
      !FindHeader(headers, "content-type").starts_with(kContentType)) {
    return HeaderList{{":status", "415"}};
  }
  const std::string_view encoding = FindHeader(headers, "grpc-encoding");
  if (!encoding.empty() && encoding != "identity") {
    HeaderList refusal = RefusalHeaders(
        kUnimplemented, fmt::format("phubd does not accept messages compressed with {}", encoding));
    refusal.emplace_back("grpc-accept-encoding", "identity");
    return refusal;
  }
  return std::nullopt;
}

void StripIdentity(HeaderList& headers) {
  std::erase_if(headers, [](const auto& header) { return NamesCaller(header.first); });
}

HealthCall HealthCallOf(const HeaderList& headers) {
  const std::string_view path = FindHeader(headers, ":path");
  if (path == "/grpc.health.v1.Health/Check") return HealthCall::kCheck;
  if (path == "/grpc.health.v1.Health/Watch") return HealthCall::kWatch;
  return HealthCall::kNone;
}

std::optional<std::string> HealthServiceOf(std::string_view message) {
  if (message.size() < kPrefixBytes || message[0] != 0) return std::nullopt;
  const std::string_view body = message.substr(kPrefixBytes);
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(message[i]); };
  const std::size_t size = std::size_t{byte(1)} << 24 | byte(2) << 16 | byte(3) << 8 | byte(4);
  if (size != body.size()) return std::nullopt;
  if (body.empty()) return std::string();
  if (body.size() < 2 || body[0] != kServiceField) return std::nullopt;
  const auto length = static_cast<unsigned char>(body[1]);
  if (length > kServiceBytesMax || length + 2u != body.size()) return std::nullopt;
  return std::string(body.substr(2));
}

std::string HealthMessage(HealthStatus status) {
  return {'\0', '\0', '\0', '\0', '\x02', '\x08', static_cast<char>(status)};
}

}  // namespace phub::server
