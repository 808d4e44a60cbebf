#include "common/tls/grpc/server_credentials.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include "common/base/check.h"

namespace phub {

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const TlsFiles& files,
                                                               ClientCertificates certificates) {
  const bool required = certificates == ClientCertificates::kRequired;
  PHUB_CHECK(!required || !files.client_ca.empty());
  const auto provider = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      files.key, files.certificate, files.client_ca, kCertificateRefreshSeconds);
  grpc::experimental::TlsServerCredentialsOptions options(provider);
  options.watch_identity_key_cert_pairs();
  if (!files.client_ca.empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(required
                                      ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                      : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(options);
}

CertificateFacts FactsOf(const grpc::AuthContext& connection) {
  CertificateFacts facts;
  for (const grpc::string_ref& uri : connection.FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME))
    facts.uris.emplace_back(uri.data(), uri.size());
  const auto certificates = connection.FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
  if (certificates.size() == 1)
    facts.end = CertificateEnd({certificates.front().data(), certificates.front().size()});
  return facts;
}

}  // namespace phub
