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

std::string DescribeLoss(const Event& event, std::string_view peer) {
  if (event.refused) {
    return "phubd could not serve the lane: its host lacks memory or epoll watches "
           "(fs.epoll.max_user_watches)";
  }
  std::string text = DescribeError(event.error, event.protocol_error, peer);
  const std::string trouble = event.connection != nullptr ? event.connection->Trouble() : "";
  return trouble.empty() ? text : fmt::format("{}: {}", text, trouble);
}

}  // namespace phub::server
