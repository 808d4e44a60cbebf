// Makes a lane with TLS from the client's side. Cold: blocks, allocates, any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/transport/stream/stream_transport.h"
#include "common/wire/lane_hello.h"

namespace phub::transport {

// As DialTcp; the hello goes inside, and the daemon has to prove that it knows hello.nonce before
// it is sent. kPermissionDenied, too, if one of the two does not have the nonce: the daemon takes
// it for used or expired, or what answers is not the daemon.
absl::StatusOr<std::unique_ptr<Connection>> DialTls(const std::string& host, std::uint16_t port,
                                                    const wire::LaneHello& hello,
                                                    DurationNs timeout,
                                                    const StreamLimits& limits = {});

}  // namespace phub::transport
