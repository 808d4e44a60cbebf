// X.509 as `phubctl pki` makes it: one authority, certificates that it signs. ECDSA P-256, SHA-256.
// Pure but for the generator of keys and the clock; any thread.
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
  int days = 0;                    // 0: `seconds` counts
  long seconds = 0;                // negative: a certificate that is over already (tests)
};
// A new key, and a certificate for it by the authority. INVALID_ARGUMENT if the authority's parts
// are not what they should be.
absl::StatusOr<Pem> MakeCertificate(const Pem& authority, const CertificateRequest& request);

}  // namespace phub::client::cli
