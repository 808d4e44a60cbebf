// Functions for connections to the control port, before and after gRPC owns them. Any thread.
#pragma once

#include <cstdint>
#include <string>

#include "common/net/address.h"

namespace phub::server {

// The first message of a client: TLS's ClientHello, or the preface of HTTP/2.
enum class FirstMessage {
  kMore,   // incomplete so far
  kWhole,  // complete; only its format was checked
  kBad,    // not such a message
  kGone,   // the connection is closed
};

// Leaves the data in the socket.
FirstMessage LookAtFirstMessage(int socket, bool tls);

// The socket's cookie, which the kernel never reuses. 0: not a socket.
std::uint64_t CookieOf(int socket);

// Shuts down the socket with that descriptor number, if its cookie still matches.
void ShutDown(int number, std::uint64_t cookie);

struct PeerText {
  std::string address;  // what the limits per address count as one address
  std::string peer;     // in the format of a call's PeerAddress()
};

PeerText PeerTextOf(net::SocketAddress address);

}  // namespace phub::server
