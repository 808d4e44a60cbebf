#include "tests/verbs/verbs_pair.h"

#include <poll.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/base/status_text.h"

namespace phub::verbs_tests {
namespace {

// rxe supports 32767; a queue takes memory, and a test run has many.
constexpr std::uint32_t kQueueEntries = 32767;

template <typename T>
T Must(absl::StatusOr<T> value) {
  PHUB_CHECK(value.ok(), "{}", MessageOf(value.status()));
  return *std::move(value);
}

}  // namespace

VerbsHost::VerbsHost(const char* device_name, std::uint32_t connections_max)
    : device(Must(transport::VerbsDevice::Open({.name = device_name}))),
      queue(Must(transport::VerbsQueue::Create(device, kQueueEntries))),
      domain(Must(transport::VerbsDomain::Create(device))),
      transport({queue}, connections_max) {}

VerbsConnections ConnectVerbs(VerbsHost& daemon, VerbsHost& client,
                              const transport::VerbsLimits& limits, transport::VerbsStaging staging,
                              transport::VerbsEnd dialled) {
  SystemRandom random;
  using transport::VerbsConnection;
  using transport::VerbsEnd;
  auto ours = Must(VerbsConnection::Create(VerbsEnd::kDaemon, daemon.queue, daemon.domain,
                                           std::move(staging), limits, random));
  auto theirs =
      Must(VerbsConnection::Create(dialled, client.queue, client.domain, {}, limits, random));
  absl::Status status = ours->Connect(theirs->Offer());
  if (status.ok()) status = theirs->Connect(ours->Offer());
  PHUB_CHECK(status.ok(), "{}", MessageOf(status));
  int sockets[2];
  PHUB_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
  ours->SetSocket(Descriptor(sockets[0]), "the client");
  theirs->SetSocket(Descriptor(sockets[1]), "the daemon");
  return {std::move(ours), std::move(theirs)};
}

void WaitForEither(transport::Transport& a, transport::Transport& b) {
  if (!a.Arm() || !b.Arm()) return;
  pollfd items[2] = {{a.descriptor(), POLLIN, 0}, {b.descriptor(), POLLIN, 0}};
  poll(items, 2, 1);
}

}  // namespace phub::verbs_tests
