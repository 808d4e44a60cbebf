// TLS of a gRPC server: its credentials, and the certificates of its callers.
#pragma once

#include <memory>

#include "common/tls/certificate.h"

namespace grpc {
class AuthContext;
class ServerCredentials;
}  // namespace grpc

namespace phub {

// How often certificate files are checked for changes.
inline constexpr unsigned kCertificateRefreshSeconds = 2;

// kOptional: callers may have other proofs of who they are, but a certificate that is presented
// must be valid.
enum class ClientCertificates { kOptional, kRequired };

// The files are read again when they change. Without a client_ca no certificates are asked for.
// REQUIRES: files.client_ca is set, if they are required.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const TlsFiles& files,
                                                               ClientCertificates certificates);

// What the certificate of a connection's caller says; no URIs if it has presented none.
CertificateFacts FactsOf(const grpc::AuthContext& connection);

}  // namespace phub
