// Opens a lane from the client's side. Off the data path: blocks, allocates, any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/transport/stream/stream_transport.h"
#include "common/wire/lane_hello.h"

namespace phub::transport {

// Connects to a daemon's data port, sends the hello and waits for the welcome. `timeout` limits all
// of this except for resolving the name. hello.version_min and version_max are the versions that
// the client supports; both 0: those of this build. A TcpTransport can adopt the result.
//
// Errors name host, port and the reason:
//   kUnavailable         connection refused or lost
//   kDeadlineExceeded    no connection or no answer in time
//   kInvalidArgument     the name does not resolve
//   kInternal            the peer is not a phub daemon
//   kFailedPrecondition  refused: no common lane version; the job or its epoch has ended
//   kPermissionDenied    refused: invalid nonce
//   kAlreadyExists       refused: this lane is already open
//   kResourceExhausted   refused: too many connections
absl::StatusOr<std::unique_ptr<Connection>> DialTcp(const std::string& host, std::uint16_t port,
                                                    const wire::LaneHello& hello,
                                                    DurationNs timeout,
                                                    const StreamLimits& limits = {});

}  // namespace phub::transport
