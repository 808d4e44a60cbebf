// Listening on a host's name or address. A name may have several addresses, such as one of IPv4 and
// one of IPv6; phub listens on all of them, on the same port. Any thread; Listen() may block in the
// resolver.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/descriptor.h"
#include "common/net/address.h"
#include "common/net/dial.h"

namespace phub::net {

struct ListenOptions {
  MakeSocket make = PlainSocket;
  // Sets options that accepted sockets inherit. False, with errno: the system refuses.
  std::function<bool(int socket)> prepare = {};
  int backlog = 1024;
};

struct Listening {
  std::vector<Descriptor> sockets;       // non-blocking
  std::vector<SocketAddress> addresses;  // where each socket listens
  std::uint16_t port = 0;                // the same for all
};

// `host`: a name or an address, without brackets; empty: all addresses. Port 0: the kernel chooses.
// An address of the name that this host does not have, such as ::1 without IPv6, is skipped, unless
// it is the only one. kUnavailable: the error names each address and what is wrong with it.
absl::StatusOr<Listening> Listen(const std::string& host, std::uint16_t port,
                                 const ListenOptions& options = {});

}  // namespace phub::net
