#include "client/session/channel.h"

#include <fmt/format.h>
#include <grpcpp/support/client_interceptor.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "client/session/control_target.h"
#include "common/base/secret_file.h"
#include "common/base/shortage.h"
#include "common/net/host_port.h"

namespace phub::client {
namespace {

// A token is one line; editors and shells add a line end.
absl::StatusOr<std::string> ReadToken(const std::string& path) {
  absl::StatusOr<std::string> text = ReadSecretFile(path);
  if (!text.ok()) return text;
  while (!text->empty() && (text->back() == '\n' || text->back() == '\r' || text->back() == ' ')) {
    text->pop_back();
  }
  if (text->empty()) return absl::FailedPreconditionError(fmt::format("{} is empty", path));
  for (const char c : *text) {
    if (c > 0x20 && c < 0x7f) continue;
    return absl::FailedPreconditionError(fmt::format("{} does not contain a token", path));
  }
  return text;
}

// Adds the token to every call of a channel. Reads the file at each call, so a renewed token needs
// no restart. If the file cannot be read, the call is sent without a token and the daemon refuses.
class TokenInterceptor final : public grpc::experimental::Interceptor {
 public:
  explicit TokenInterceptor(const std::string& path) : path_(path) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      const absl::StatusOr<std::string> token = ReadToken(path_);
      if (token.ok()) {
        methods->GetSendInitialMetadata()->insert({"authorization", "Bearer " + *token});
      }
    }
    methods->Proceed();
  }

 private:
  const std::string& path_;  // the factory's
};

class TokenInterceptorFactory final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit TokenInterceptorFactory(std::string path) : path_(std::move(path)) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new TokenInterceptor(path_);  // gRPC owns it
  }

 private:
  const std::string path_;
};

absl::StatusOr<grpc::SslCredentialsOptions> ReadTlsFiles(const Credentials& credentials) {
  grpc::SslCredentialsOptions options;
  if (!credentials.ca_file.empty()) {
    absl::StatusOr<std::string> authority = ReadPublicFile(credentials.ca_file);
    if (!authority.ok()) return authority.status();
    options.pem_root_certs = *std::move(authority);
  }
  if (credentials.certificate.empty() != credentials.key.empty()) {
    return absl::InvalidArgumentError(
        "a certificate needs its private key: give both the certificate and the key");
  }
  if (credentials.certificate.empty()) return options;
  absl::StatusOr<std::string> certificate = ReadPublicFile(credentials.certificate);
  if (!certificate.ok()) return certificate.status();
  absl::StatusOr<std::string> key = ReadSecretFile(credentials.key);
  if (!key.ok()) return key.status();
  options.pem_cert_chain = *std::move(certificate);
  options.pem_private_key = *std::move(key);
  return options;
}

// True if the target is on this host.
bool IsLocal(const std::string& target) {
  return target.starts_with(kUnixScheme) || target.starts_with("127.") ||
         target.starts_with("localhost:") || target.starts_with("[::1]:");
}

// gRPC 1.51 opens an epoll, eventfds, and a socket for each of its two first connections.
constexpr std::size_t kGrpcDescriptors = 6;
// Its pollers number half of the host's processors (2 to 16); it has executors and timers, too.
constexpr std::size_t kGrpcPollersMin = 2;
constexpr std::size_t kGrpcPollersMax = 16;
constexpr std::size_t kGrpcOtherThreads = 6;

}  // namespace

absl::Status CheckRoomForGrpc() {
  const std::size_t pollers = std::clamp<std::size_t>(std::thread::hardware_concurrency() / 2,
                                                      kGrpcPollersMin, kGrpcPollersMax);
  return CheckRoom(kGrpcDescriptors, pollers + kGrpcOtherThreads, "a connection to phubd");
}

absl::Status CheckCredentials(const Credentials& credentials, const std::string& target) {
  if (!credentials.key.empty() && credentials.certificate.empty()) {
    return absl::InvalidArgumentError(
        "a private key was given without its certificate; give both, or neither");
  }
  if (credentials.token_file.empty()) return absl::OkStatus();
  if (const absl::StatusOr<std::string> token = ReadToken(credentials.token_file); !token.ok()) {
    return token.status();
  }
  if (credentials.tls() || credentials.plaintext_token || IsLocal(target)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("the token in {} would be sent to {} unencrypted; use TLS (ca_file, --ca-file), "
                  "or accept the risk (plaintext_token, --plaintext-token)",
                  credentials.token_file, target));
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const std::string& target,
                                                           const Credentials& credentials,
                                                           grpc::ChannelArguments arguments) {
  if (absl::Status status = CheckCredentials(credentials, target); !status.ok()) return status;
  const absl::StatusOr<std::string> resolved = ResolvedTarget(target);
  if (!resolved.ok()) return resolved.status();
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // daemons are never behind a proxy
  std::shared_ptr<grpc::ChannelCredentials> transport = grpc::InsecureChannelCredentials();
  if (credentials.tls() && !target.starts_with(kUnixScheme)) {
    const absl::StatusOr<grpc::SslCredentialsOptions> files = ReadTlsFiles(credentials);
    if (!files.ok()) return files.status();
    transport = grpc::SslCredentials(*files);
    const auto at = net::ParseHostAndPort(target);  // checked by ResolvedTarget()
    // The name in the daemon's certificate. Otherwise gRPC takes it from the resolved target.
    arguments.SetSslTargetNameOverride(
        credentials.server_name.empty() && at.ok() ? at->host : credentials.server_name);
  }
  if (*resolved != target) arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, target);
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors;
  if (!credentials.token_file.empty()) {
    interceptors.push_back(std::make_unique<TokenInterceptorFactory>(credentials.token_file));
  }
  return grpc::experimental::CreateCustomChannelWithInterceptors(*resolved, transport, arguments,
                                                                 std::move(interceptors));
}

}  // namespace phub::client
