// The checks of certificates that TLS does not make. Pure, except for reading files.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/wall_clock.h"

namespace phub {

// What a verified certificate of a caller says.
struct CertificateFacts {
  std::vector<std::string> uris;  // of its subject alternative names
  std::optional<WallTimeNs> end;  // nullopt: unknown
};
// Its only URI. UNAUTHENTICATED: it has expired since the connection was made, or has another
// number of URIs; the message shows one of `role`.
absl::StatusOr<std::string> UriOf(const CertificateFacts& certificate, std::string_view role,
                                  std::string_view trust_domain);

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

}  // namespace phub
