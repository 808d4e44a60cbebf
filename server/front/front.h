// The front: a process of phubd that owns the public control port. It ends TLS and HTTP/2 and
// passes to phubd's gRPC only what may pass. It reads no files, makes no connections, knows no
// tenants and judges no tokens.
//
// phubd starts it by executing itself (supervisor.h). It ends when phubd closes its end of the pair
// of sockets.
#pragma once

#include <string_view>

namespace phub::server {

// Runs the front on the inherited descriptors (packet.h). Returns the process's exit code.
int RunFront();

}  // namespace phub::server
