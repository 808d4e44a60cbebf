#include "server/control/text.h"

#include <fmt/core.h>

namespace phub::server {

std::string FormatAge(DurationNs age) {
  if (age < 0) age = 0;
  if (age < kSecond / 10) return fmt::format("{} ms", age / kMillisecond);
  return fmt::format("{:.1f} s", static_cast<double>(age) / static_cast<double>(kSecond));
}

std::string FormatIncarnation(Incarnation value) { return fmt::format("{:016x}", value.value); }

namespace {

std::string DescribeError(transport::TransportError error, transport::ProtocolError protocol_error,
                          std::string_view peer) {
  switch (error) {
    case transport::TransportError::kPeerClosed: return fmt::format("closed by {}", peer);
    case transport::TransportError::kReset: return "connection reset";
    case transport::TransportError::kProtocol:
      return fmt::format("protocol error: {}", transport::ToString(protocol_error));
    case transport::TransportError::kLocalClosed: return "closed by the daemon";
    case transport::TransportError::kNone: break;
  }
  return "closed";
}

}  // namespace

std::string DescribeLoss(transport::TransportError error, transport::ProtocolError protocol_error,
                         const transport::Connection* connection, std::string_view peer) {
  std::string text = DescribeError(error, protocol_error, peer);
  const std::string trouble = connection != nullptr ? connection->Trouble() : "";
  return trouble.empty() ? text : fmt::format("{}: {}", text, trouble);
}

}  // namespace phub::server
