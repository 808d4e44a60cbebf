// Makes a lane over verbs from the side of who asks for it: a client, or the daemon of another rack
// (VerbsEnd::kDialer). Cold: blocks, allocates, any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/transport/verbs/verbs_connection.h"
#include "common/wire/lane_hello.h"

namespace phub::transport {

// Connects to a daemon's data port, asks for a lane over verbs and connects the queue pairs; all of
// it, but resolving the name, within `timeout`. `queue` is of the transport that will adopt the
// connection, `domain` of the job, on the same device. Errors are those of DialTcp; besides
//   kUnimplemented  the daemon's data port makes no such lanes, or this host cannot (no memory to
//                   pin, no room in the device)
// Whoever gets an error has no lane at the daemon either: that is one only once this end is
// connected. The request goes in the clear: whatever comes of it, its nonce is good for nothing
// else.
absl::StatusOr<std::unique_ptr<Connection>> DialVerbs(
    const std::string& host, std::uint16_t port, const wire::LaneHello& hello, DurationNs timeout,
    std::shared_ptr<VerbsQueue> queue, std::shared_ptr<VerbsDomain> domain, Random& random,
    const VerbsLimits& limits = {}, VerbsEnd end = VerbsEnd::kClient);

}  // namespace phub::transport
