// Both ends of verbs lanes in one process, on the two soft RoCE devices of a guest: the daemon's
// end on rxe1, the client's on rxe0.
#pragma once

#include <memory>
#include <utility>

#include "common/base/random.h"
#include "common/transport/verbs/verbs_connection.h"
#include "common/transport/verbs/verbs_transport.h"

namespace phub::verbs_tests {

// One end: its device, its queue, its transport, and its job's registered memory.
struct VerbsHost {
  VerbsHost(const char* device_name, std::uint32_t connections_max);

  std::shared_ptr<const transport::VerbsDevice> device;
  std::shared_ptr<transport::VerbsQueue> queue;
  std::shared_ptr<transport::VerbsDomain> domain;
  transport::VerbsTransport transport;
};

// Guests are slow, and a late packet is not lost: 4.3 s until the first retry.
inline constexpr std::uint8_t kGuestAckTimeout = 20;

using VerbsConnections = std::pair<std::unique_ptr<transport::VerbsConnection>,
                                   std::unique_ptr<transport::VerbsConnection>>;
// The daemon's end and the dialling end, connected, each with one end of a socket.
VerbsConnections ConnectVerbs(VerbsHost& daemon, VerbsHost& client,
                              const transport::VerbsLimits& limits,
                              transport::VerbsStaging staging = {},
                              transport::VerbsEnd dialled = transport::VerbsEnd::kClient);

// Blocks until either transport has something to do, for at most a millisecond.
void WaitForEither(transport::Transport& a, transport::Transport& b);

}  // namespace phub::verbs_tests
