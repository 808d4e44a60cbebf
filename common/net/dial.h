// Connects to a host with several addresses, also if some do not answer (RFC 8305, "Happy
// Eyeballs"). Off the data path: blocks, any thread.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/descriptor.h"
#include "common/net/address.h"

namespace phub::net {

// Section 8 of RFC 8305 recommends this delay between attempts.
inline constexpr DurationNs kNextAddressAfter = 250 * kMillisecond;

struct Deadline {
  const Clock& clock;
  TimeNs at;
  DurationNs timeout;  // from which `at` was computed, for the error
};

// Waits until the socket is readable or writable (POLLIN, POLLOUT). False when time is up.
bool WaitSocket(int socket, short events, TimeNs deadline, const Clock& clock);

// Alternates the address families and starts with that of the first address, so that one family
// without a route costs one attempt.
std::vector<SocketAddress> Interleaved(std::span<const SocketAddress> addresses);

// Makes a non-blocking stream socket. Empty, with errno, if the system refuses.
using MakeSocket = std::function<Descriptor(sa_family_t family)>;
Descriptor PlainSocket(sa_family_t family);

struct Dialled {
  Descriptor socket;  // connected, non-blocking
  SocketAddress address;
};

// Tries the addresses in the order of Interleaved(). Each attempt starts when the one before it
// fails, or kNextAddressAfter after that one started (earlier if the timeout is short). The first
// connection wins, and the others are closed.
// `peer`: what the addresses belong to, for the error, which has the cause for every address.
// kDeadlineExceeded: an address did not answer in time. Otherwise kUnavailable.
absl::StatusOr<Dialled> DialFirst(std::span<const SocketAddress> addresses, const std::string& peer,
                                  const Deadline& deadline, const MakeSocket& make = PlainSocket);
// Resolves the host and dials its addresses. Errors are those of Resolve() and DialFirst().
absl::StatusOr<Dialled> Dial(const std::string& host, std::uint16_t port, const Deadline& deadline,
                             const MakeSocket& make = PlainSocket);

}  // namespace phub::net
