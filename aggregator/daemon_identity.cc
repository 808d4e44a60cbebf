#include "aggregator/daemon_identity.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include "common/base/status_text.h"
#include "common/tls/grpc/server_credentials.h"
#include "common/tls/spiffe_id.h"

namespace phub::aggregator {

absl::StatusOr<std::string> IdentifyDaemon(const grpc::ServerContext& context,
                                           const std::string& trust_domain) {
  if (context.peer().starts_with("unix:")) return kLocal;
  const std::shared_ptr<const grpc::AuthContext> connection = context.auth_context();
  const absl::StatusOr<std::string> uri = UriOf(
      connection == nullptr ? CertificateFacts() : FactsOf(*connection), "server", trust_domain);
  if (!uri.ok()) return uri.status();
  const absl::StatusOr<SpiffeId> id = ParseSpiffeId(*uri, trust_domain);
  if (!id.ok()) {
    return absl::UnauthenticatedError(
        fmt::format("the certificate names {}, {}", *uri, MessageOf(id.status())));
  }
  if (id->role == "server") return uri;
  return absl::PermissionDeniedError(fmt::format(
      "only daemons may call phub-aggregator, with a certificate of the role server; this one "
      "names {}",
      *uri));
}

}  // namespace phub::aggregator
