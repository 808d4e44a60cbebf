// What the daemon checks of certificates itself; the rest is TLS's. Pure but for reading files.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "server/tenant/tenant.h"

namespace phub::server {

// When a certificate (PEM) ends; nothing if it is not one.
std::optional<WallTimeNs> CertificateEnd(std::string_view pem);

struct TlsFiles {
  std::string certificate;  // PEM, the chain
  std::string key;          // PEM, mode 0600
  std::string client_ca;    // PEM; empty: no client certificates
  bool empty() const { return certificate.empty(); }
};
// Whether they can be read, belong together, and are not over: before a server is started with
// them. Names the file, and what to do.
absl::Status CheckTlsFiles(const TlsFiles& files);

}  // namespace phub::server
