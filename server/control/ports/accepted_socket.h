// What can be said of a connection to the control port before gRPC has it, and after. Any thread.
#pragma once

#include <cstdint>
#include <string>

#include "common/transport/tcp/tcp_socket.h"

namespace phub::server {

// What a client sends first: TLS's ClientHello, or the preface of HTTP/2.
enum class FirstMessage {
  kMore,   // not whole yet
  kWhole,  // and nothing but its form has been looked at
  kBad,    // something else
  kGone,   // the connection has ended
};

// Takes nothing out of the socket.
FirstMessage LookAtFirstMessage(int socket, bool tls);

// The kernel never gives one twice. 0: that is no socket.
std::uint64_t CookieOf(int socket);

// Ends the connection that had that number, if it still has.
void ShutDown(int number, std::uint64_t cookie);

struct PeerText {
  std::string address;  // what counts as one
  std::string peer;     // as PeerAddress() of a call gives it
};

PeerText PeerTextOf(transport::SocketAddress address);

}  // namespace phub::server
