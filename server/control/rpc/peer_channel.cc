#include "server/control/rpc/peer_channel.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include "common/base/secret_file.h"
#include "common/tls/grpc/server_credentials.h"

namespace phub::server {
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakePeerCredentials(
    const PeerCredentials& files) {
  if (files.certificate.empty()) return grpc::InsecureChannelCredentials();
  // Read here only to report errors in the files.
  if (!files.ca.empty()) {
    if (auto authority = ReadPublicFile(files.ca); !authority.ok()) return authority.status();
  }
  if (auto chain = ReadPublicFile(files.certificate); !chain.ok()) return chain.status();
  if (auto key = ReadSecretFile(files.key); !key.ok()) return key.status();
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          files.key, files.certificate, files.ca, kCertificateRefreshSeconds));
  options.watch_identity_key_cert_pairs();
  if (!files.ca.empty()) options.watch_root_certs();
  return grpc::experimental::TlsCredentials(options);
}

std::shared_ptr<grpc::Channel> MakePeerChannel(
    const std::string& endpoint, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  // Reconnect quickly to a daemon that has restarted. "Min" is the timeout of one attempt.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  // Otherwise a new channel would share the connection of an old one.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(endpoint, credentials, arguments);
}

absl::Status SaidByPeer(const std::string& who, const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  switch (status.error_code()) {
    // The caller has reached this daemon, and UNAVAILABLE would mean that it has not.
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return absl::AbortedError(fmt::format("{} does not answer: {}", who, status.error_message()));
    case grpc::StatusCode::UNIMPLEMENTED:
      return absl::FailedPreconditionError(fmt::format(
          "the phubd of {} is older than this one; upgrade it: {}", who, status.error_message()));
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
      return absl::FailedPreconditionError(fmt::format(
          "{} does not accept this daemon as one of its racks: {}", who, status.error_message()));
    default:
      return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                          fmt::format("{}: {}", who, status.error_message()));
  }
}

std::string HostOfRack(const std::string& endpoint) {
  std::string host = endpoint.substr(0, endpoint.rfind(':'));
  return host.starts_with('[') ? host.substr(1, host.size() - 2) : host;
}

}  // namespace phub::server
