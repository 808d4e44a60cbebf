// Numeric addresses with ports as text: "10.0.0.1:7701", "[fd00::1]:7701". Names are not resolved,
// so parsing never blocks. Any thread.
#pragma once

#include <sys/socket.h>

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/aggregation/packet.h"

namespace phub::aggregation {

struct ParsedAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
};

absl::StatusOr<ParsedAddress> ParseAddress(std::string_view text);
absl::StatusOr<phub_endpoint> ParseEndpoint(std::string_view text);
std::string TextOf(const phub_endpoint& endpoint);

}  // namespace phub::aggregation
