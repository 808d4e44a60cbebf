// Opens a lane with TLS from the client's side. Off the data path: blocks, allocates, any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/transport/stream/stream_transport.h"
#include "common/wire/lane_hello.h"

namespace phub::transport {

// Like DialTcp, but the hello is encrypted, and the daemon must first prove that it knows
// hello.nonce. kPermissionDenied also if one end does not have the nonce: it was used or has
// expired, or the peer is not the daemon.
absl::StatusOr<std::unique_ptr<Connection>> DialTls(const std::string& host, std::uint16_t port,
                                                    const wire::LaneHello& hello,
                                                    DurationNs timeout,
                                                    const StreamLimits& limits = {});

}  // namespace phub::transport
