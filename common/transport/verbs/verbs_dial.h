// Opens a lane over verbs from the dialling side: a client, or the daemon of another rack
// (VerbsEnd::kDialer). Off the data path: blocks, allocates, any thread.
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

// Connects to a daemon's data port, requests a lane over verbs and connects the queue pairs.
// `timeout` limits all of this except for resolving the name. `queue` belongs to the transport that
// will adopt the connection, `domain` to the job, on the same device. Errors are those of DialTcp,
// and
//   kUnimplemented  the daemon does not support such lanes, or this host cannot open one (memory
//                   cannot be pinned, the device has no room)
// After an error the daemon has no lane either, because a lane counts as open only after this end
// has confirmed it. The request is not encrypted, so its nonce must be used for nothing else, even
// after an error.
absl::StatusOr<std::unique_ptr<Connection>> DialVerbs(
    const std::string& host, std::uint16_t port, const wire::LaneHello& hello, DurationNs timeout,
    std::shared_ptr<VerbsQueue> queue, std::shared_ptr<VerbsDomain> domain, Random& random,
    const VerbsLimits& limits = {}, VerbsEnd end = VerbsEnd::kClient);

}  // namespace phub::transport
