#include "server/control/rpc/grpc_server.h"

#include <fmt/format.h>
#include <google/protobuf/stubs/logging.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/server_posix.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "server/control/ports/control_port.h"
#include "server/control/ports/listening_sockets.h"
#include "server/control/rpc/front_gate.h"
#include "server/control/rpc/peer_channel.h"
#include "server/control/rpc/service.h"

namespace phub::server {
namespace {

constexpr const char* kSessionService = "phub.v1.Session";
constexpr int kMessageBytesMax = 4 << 20;  // for requests
// For responses: as much as clients accept. Lists of a job's keys are bounded by the number of keys
// and the length of their names.
constexpr int kAnswerBytesMax = 64 << 20;
// Keepalive closes connections of dead peers. Liveness itself is based on heartbeats.
constexpr int kKeepaliveMs = 10'000;
constexpr int kKeepaliveTimeoutMs = 5'000;
// Clients may ping as often as they like: a ping is cheap, and a client would take a refused ping
// for a dead daemon.
constexpr int kPingIntervalMsMin = 10;
constexpr int kPingStrikesUnlimited = 0;
// Maximum size of a call's headers; a token has 86 bytes. Larger headers are refused unread.
constexpr int kMetadataBytesMax = 8 * 1024;
// A connection that does not complete its handshake in this time is closed.
constexpr int kHandshakeTimeoutMs = 3'000;
// A connection without a call for this long is closed. Workers always have an open stream, and
// clients reconnect automatically.
constexpr int kIdleMs = 60'000;
// Concurrent calls on one connection: a worker's barriers (64), and a reserve.
constexpr int kStreamsMax = 128;
constexpr int kListenRetries = 5;
constexpr std::chrono::milliseconds kListenRetryDelay{50};

void SetUpProcessOnce() {
  static std::once_flag once;
  std::call_once(once, [] {
    // Protobuf writes to standard error what it rejects, with text that the caller chose.
    google::protobuf::SetLogHandler(nullptr);
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
}

// Reflection shows the services to any client, and its library adds it to every server of the
// process. It is removed again if callers need an identity.
class WithoutReflection final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    std::erase_if(*plugins, [](const std::unique_ptr<grpc::ServerBuilderPlugin>& plugin) {
      return plugin->name() == "proto_server_reflection";
    });
  }
};

std::shared_ptr<grpc::ServerCredentials> MakeCredentials(const TlsFiles& tls) {
  if (tls.empty()) return grpc::InsecureServerCredentials();
  const auto provider = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      tls.key, tls.certificate, tls.client_ca, kCertificateRefreshSeconds);
  grpc::experimental::TlsServerCredentialsOptions options(provider);
  options.watch_identity_key_cert_pairs();
  if (!tls.client_ca.empty()) {
    options.watch_root_certs();
    // A client certificate is optional, since a caller may use a token. A certificate that is
    // presented must be valid.
    options.set_cert_request_type(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(options);
}

void SetLimits(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  builder.SetMaxSendMessageSize(kAnswerBytesMax);
  // gRPC decompresses a message before it checks its size and before anything knows the caller, so
  // 254 KiB could take 256 MiB. No client of phub compresses.
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kPingIntervalMsMin);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, kPingStrikesUnlimited);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMetadataBytesMax);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsMax);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
}

}  // namespace

struct GrpcServer::Impl {
  Impl(ControlThread& thread, const GrpcServerOptions& options)
      : access(options.directory, options.identities, options.trust_domain),
        shared(thread, access, options.admin, options.state_thread, options.relay),
        services{MakeSessionService(shared), MakeAdminService(shared), MakeTenantsService(shared),
                 MakePeerService(shared), MakeProbeService(shared, options.prober)} {}
  absl::Status Bind(const GrpcServerOptions& options);
  // To be called once gRPC serves; it closes connections that are handed over earlier.
  absl::Status StartFront(const GrpcServerOptions& options);
  void StartPort();
  void HandOver(int from, Descriptor connection);

  Access access;
  Shared shared;
  const std::unique_ptr<grpc::Service> services[5];
  std::uint16_t port_number = 0;
  std::vector<Descriptor> listening;  // for the front
  std::unique_ptr<ControlPort> port;  // null: there is a front
  std::unique_ptr<FrontGate> front;   // null: gRPC serves the port itself
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
  std::unique_ptr<grpc::Server> server;
};

absl::Status GrpcServer::Impl::Bind(const GrpcServerOptions& options) {
  if (!options.front_program.empty()) {
    auto made = ListenForControl(options.host, options.port);
    // The front of a phubd that was killed ends a moment after it.
    for (int i = 0; i < kListenRetries && !made.ok(); ++i) {
      std::this_thread::sleep_for(kListenRetryDelay);
      made = ListenForControl(options.host, options.port);
    }
    if (!made.ok()) return made.status();
    port_number = made->port;
    listening = std::move(made->sockets);
    return absl::OkStatus();
  }
  auto made = ControlPort::Create(
      {.host = options.host, .port = options.port, .tls = !options.tls.empty()});
  if (!made.ok()) return made.status();
  port = *std::move(made);
  port_number = port->port();
  access.SetOnKnown([this](const std::string& peer) { port->MarkKnown(peer); });
  return absl::OkStatus();
}

void GrpcServer::Impl::HandOver(int from, Descriptor connection) {
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters given;
  given.listener_fd = from;
  given.fd = connection.Release();
  acceptor->HandleNewConnection(&given);
}

absl::Status GrpcServer::Impl::StartFront(const GrpcServerOptions& options) {
  auto started = FrontGate::Start(
      std::move(listening),
      {.program = options.front_program,
       .tls = options.tls,
       .refresh_seconds = kCertificateRefreshSeconds},
      shared, [this](Descriptor connection) { HandOver(/*from=*/-1, std::move(connection)); });
  if (!started.ok()) return started.status();
  front = *std::move(started);
  return absl::OkStatus();
}

void GrpcServer::Impl::StartPort() {
  port->Start([this](int from, Descriptor connection) { HandOver(from, std::move(connection)); },
              [this](const ControlPortRefusals& refused) {
                shared.thread.Run([&](Control& control) {
                  control.Count(ControlCounter::connections_refused_form, refused.form);
                  control.Count(ControlCounter::connections_refused_crowd, refused.crowd);
                  control.Count(ControlCounter::connections_refused_late, refused.late);
                });
              });
}

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrpcServer::~GrpcServer() { Shutdown(); }

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Create(ControlThread& thread,
                                                               const GrpcServerOptions& options) {
  if (!options.tls.empty()) {
    if (absl::Status status = CheckTlsFiles(options.tls); !status.ok()) return status;
  }
  SetUpProcessOnce();
  auto impl = std::make_unique<Impl>(thread, options);
  if (absl::Status status = impl->Bind(options); !status.ok()) return status;
  const bool has_front = impl->port == nullptr;
  grpc::ServerBuilder builder;
  for (const auto& service : impl->services) builder.RegisterService(service.get());
  SetLimits(builder);
  if (options.identities) builder.SetOption(std::make_unique<WithoutReflection>());
  impl->acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      has_front ? grpc::InsecureServerCredentials() : MakeCredentials(options.tls));
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr) return absl::InternalError("gRPC failed to start the server");
  std::unique_ptr<GrpcServer> server(new GrpcServer(std::move(impl)));
  if (has_front) {
    if (absl::Status status = server->impl_->StartFront(options); !status.ok()) return status;
  } else {
    server->impl_->StartPort();
  }
  server->impl_->shared.set_serving = [raw = server.get()](bool serving) {
    raw->SetServing(serving);
  };
  server->SetServing(true);
  LogInfo("event=control_listening host={} port={} tls={} identities={} front={}", options.host,
          server->port(), !options.tls.empty(), options.identities, has_front);
  return server;
}

void GrpcServer::AddLocalConnection(Descriptor connection, const PeerProcess& process) {
  // Registers the peer name of the connection's calls before the first call can arrive.
  impl_->access.peers().AddLocal(connection.get(), process);
  grpc::AddInsecureChannelFromFd(impl_->server.get(), connection.Release());
}

std::uint16_t GrpcServer::port() const { return impl_->port_number; }

void GrpcServer::SetServing(bool serving) {
  if (impl_->front != nullptr) impl_->front->SetServing(serving);
  grpc::HealthCheckServiceInterface* const health = impl_->server->GetHealthCheckService();
  health->SetServingStatus(serving);  // the name ""
  health->SetServingStatus(kSessionService, serving);
}

void GrpcServer::Shutdown(DurationNs grace) {
  if (impl_->port != nullptr) impl_->port->Stop();
  if (impl_->front != nullptr) impl_->front->Drain();
  if (impl_->server == nullptr) return;
  // gRPC waits for every reactor to finish, and only this code can finish them.
  impl_->shared.thread.Run([&](Control&) {
    impl_->shared.closed = true;
    const absl::Status status = absl::UnavailableError("phubd is shutting down");
    impl_->shared.calls->FinishAll(status);
    for (const auto& [stream, end] : impl_->shared.streams) end(status);
  });
  impl_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::nanoseconds(grace));
  impl_->server->Wait();
  if (impl_->front != nullptr) impl_->front->Stop();
  impl_->server.reset();
}

}  // namespace phub::server
