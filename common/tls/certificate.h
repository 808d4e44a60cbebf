// The daemon's own checks of certificates; TLS does the others. Pure, except for reading files.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "server/tenant/tenant.h"

namespace phub::server {

// When a certificate (PEM) expires; nullopt if it is not a certificate.
std::optional<WallTimeNs> CertificateEnd(std::string_view pem);

struct TlsFiles {
  std::string certificate;  // PEM, the chain
  std::string key;          // PEM, mode 0600
  std::string client_ca;    // PEM; empty: no client certificates
  bool empty() const { return certificate.empty(); }
};
// Checks, before a server is started with the files, that they can be read, match each other and
// have not expired. The error names the file and the fix.
absl::Status CheckTlsFiles(const TlsFiles& files);
// The same for a file of authorities.
absl::Status CheckAuthorityFile(const std::string& path);

}  // namespace phub::server
