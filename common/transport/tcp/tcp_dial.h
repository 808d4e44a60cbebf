// Makes a lane from the client's side. Cold: blocks, allocates, any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/transport/stream/stream_transport.h"
#include "common/wire/lane_hello.h"

namespace phub::transport {

// Connects to a daemon's data port, says hello and waits for the welcome; all of it, but resolving
// the name, within `timeout`. hello.version_min and version_max say what the client speaks; both 0
// stand for what this build speaks. What is returned is for a TcpTransport to adopt.
//
// Errors name host, port and the reason:
//   kUnavailable         nobody could be reached, or the connection broke
//   kDeadlineExceeded    no connection or no answer in time
//   kInvalidArgument     the name does not resolve
//   kInternal            what answered is not a phub daemon
//   kFailedPrecondition  refused: no lane version in common; the job or its epoch is over
//   kPermissionDenied    refused: nonce
//   kAlreadyExists       refused: the lane's place is held by a live lane
//   kResourceExhausted   refused: too many connections
absl::StatusOr<std::unique_ptr<Connection>> DialTcp(const std::string& host, std::uint16_t port,
                                                    const wire::LaneHello& hello,
                                                    DurationNs timeout,
                                                    const StreamLimits& limits = {});

}  // namespace phub::transport
