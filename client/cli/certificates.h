// X.509 certificates for `phubctl pki`: one authority and certificates that it signs. ECDSA P-256,
// SHA-256. Pure except for key generation and the clock; any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace phub::client::cli {

struct Pem {
  std::string certificate;
  std::string key;
};

// A new authority for `trust_domain`.
absl::StatusOr<Pem> MakeAuthority(const std::string& trust_domain, int days);

struct CertificateRequest {
  std::string uri;                 // "spiffe://phub/tenant/acme"
  std::vector<std::string> hosts;  // names and IP addresses; for daemons
  int days = 0;                    // lifetime; 0: use `seconds`
  long seconds = 0;                // negative: a certificate that has already expired (tests)
};
// Generates a key and issues a certificate for it. INVALID_ARGUMENT: the authority's certificate or
// key is invalid.
absl::StatusOr<Pem> MakeCertificate(const Pem& authority, const CertificateRequest& request);

}  // namespace phub::client::cli
