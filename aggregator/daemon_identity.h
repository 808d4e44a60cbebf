// Which daemon calls the control port. Leases belong to the daemon that they were granted to.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace grpc {
class ServerContext;
}

namespace phub::aggregator {

// The owner of leases that are granted over the Unix socket.
inline constexpr const char* kLocal = "local";

// kLocal for a call over the Unix socket, whose file's permissions are the authentication;
// otherwise the URI of the caller's certificate, which TLS has verified. UNAUTHENTICATED or
// PERMISSION_DENIED: it is not the certificate of a daemon (role `server`).
absl::StatusOr<std::string> IdentifyDaemon(const grpc::ServerContext& context,
                                           const std::string& trust_domain);

}  // namespace phub::aggregator
