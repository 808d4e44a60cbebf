#include "server/control/rpc/grpc_server.h"

#include <fmt/format.h>
#include <google/protobuf/stubs/logging.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server_posix.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/base/status_text.h"
#include "common/net/listen.h"
#include "common/tls/grpc/server_credentials.h"
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
// A connection is closed if its peer does not acknowledge data for this long.
constexpr int kUserTimeoutMs = 5'000;
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

// Client certificates are optional, since a caller may use a token.
std::shared_ptr<grpc::ServerCredentials> MakeCredentials(const TlsFiles& tls) {
  if (tls.empty()) return grpc::InsecureServerCredentials();
  return MakeServerCredentials(tls, ClientCertificates::kOptional);
}

absl::Status NotServing(const GrpcServerOptions& options) {
  if (!options.front_program.empty()) {
    return absl::InternalError("gRPC failed to start the server");
  }
  return absl::UnavailableError(
      fmt::format("cannot listen on {}: the address does not belong to this host, or another "
                  "process (probably another phubd) uses the port",
                  net::HostPort(options.host, options.port)));
}

// Accepted sockets inherit what is set here. gRPC sets the same on its own listening sockets.
bool PrepareListening(int socket) {
  const int on = 1;
  return setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0 &&
         setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUserTimeoutMs,
                    sizeof kUserTimeoutMs) == 0;
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
        shared(thread, access, options.admin, options.state_thread, options.relay,
               options.request_memory),
        services{MakeSessionService(shared),
                 MakeAdminService(shared),
                 MakeTenantsService(shared),
                 MakePeerService(shared),
                 MakeProbeService(shared, options.prober),
                 MakeMembershipService(shared)} {}
  absl::Status Bind(const GrpcServerOptions& options);  // for the front
  void ListenOn(grpc::ServerBuilder& builder, const GrpcServerOptions& options);
  // To be called once gRPC serves; it closes connections that are handed over earlier.
  absl::Status StartFront(const GrpcServerOptions& options);
  void HandOver(Descriptor connection);
  std::uint16_t Port() const { return static_cast<std::uint16_t>(port_number); }

  Access access;
  Shared shared;
  const std::unique_ptr<grpc::Service> services[6];
  int port_number = 0;               // gRPC sets it when it listens itself
  net::Listening listening;          // for the front
  std::unique_ptr<FrontGate> front;  // null: gRPC serves the port itself
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
  std::unique_ptr<grpc::Server> server;
};

absl::Status GrpcServer::Impl::Bind(const GrpcServerOptions& options) {
  const auto listen = [&] {
    return net::Listen(options.host, options.port, {.prepare = PrepareListening});
  };
  auto made = listen();
  // The front of a phubd that was killed ends a moment after it.
  for (int i = 0; i < kListenRetries && !made.ok(); ++i) {
    std::this_thread::sleep_for(kListenRetryDelay);
    made = listen();
  }
  if (!made.ok()) return made.status();
  listening = *std::move(made);
  port_number = listening.port;
  return absl::OkStatus();
}

void GrpcServer::Impl::ListenOn(grpc::ServerBuilder& builder, const GrpcServerOptions& options) {
  if (!options.front_program.empty()) {
    acceptor = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        grpc::InsecureServerCredentials());
    return;
  }
  // Otherwise a second phubd could listen on the same port, and the kernel would divide the
  // connections between the two.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddListeningPort(net::HostPort(options.host, options.port), MakeCredentials(options.tls),
                           &port_number);
}

void GrpcServer::Impl::HandOver(Descriptor connection) {
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters given;
  given.listener_fd = -1;
  given.fd = connection.Release();
  acceptor->HandleNewConnection(&given);
}

absl::Status GrpcServer::Impl::StartFront(const GrpcServerOptions& options) {
  auto started =
      FrontGate::Start(std::move(listening.sockets),
                       {.program = options.front_program,
                        .tls = options.tls,
                        .refresh_seconds = kCertificateRefreshSeconds},
                       shared, [this](Descriptor connection) { HandOver(std::move(connection)); });
  if (!started.ok()) return started.status();
  front = *std::move(started);
  return absl::OkStatus();
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
  if (const absl::Status& started = impl->shared.calls->turns().started(); !started.ok())
    return started;
  const bool has_front = !options.front_program.empty();
  if (has_front) {
    if (absl::Status status = impl->Bind(options); !status.ok()) return status;
  }
  grpc::ServerBuilder builder;
  for (const auto& service : impl->services) builder.RegisterService(service.get());
  SetLimits(builder);
  if (options.identities) builder.SetOption(std::make_unique<WithoutReflection>());
  impl->ListenOn(builder, options);
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr || impl->port_number == 0) return NotServing(options);
  if (!has_front) {
    auto addresses = net::Resolve(options.host, impl->Port(), /*passive=*/true);
    if (!addresses.ok()) return addresses.status();
    impl->listening.addresses = *std::move(addresses);
  }
  std::unique_ptr<GrpcServer> server(new GrpcServer(std::move(impl)));
  if (has_front) {
    if (absl::Status status = server->impl_->StartFront(options); !status.ok()) return status;
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

std::uint16_t GrpcServer::port() const { return impl_->Port(); }
const std::vector<net::SocketAddress>& GrpcServer::addresses() const {
  return impl_->listening.addresses;
}

void GrpcServer::SetServing(bool serving) {
  if (impl_->front != nullptr) impl_->front->SetServing(serving);
  grpc::HealthCheckServiceInterface* const health = impl_->server->GetHealthCheckService();
  health->SetServingStatus(serving);  // the name ""
  health->SetServingStatus(kSessionService, serving);
}

void GrpcServer::Shutdown(DurationNs grace) {
  if (impl_->front != nullptr) impl_->front->Drain();
  if (impl_->server == nullptr) return;
  // gRPC waits for every reactor to finish, and only this code can finish them.
  impl_->shared.thread.Run([&](Control&) {
    impl_->shared.closed = true;
    const absl::Status status = absl::UnavailableError("phubd is shutting down");
    impl_->shared.calls->FinishAll(status);
    for (const auto& [stream, end] : impl_->shared.streams) end(status);
  });
  impl_->shared.calls->turns().Stop();
  impl_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::nanoseconds(grace));
  impl_->server->Wait();
  if (impl_->front != nullptr) impl_->front->Stop();
  impl_->server.reset();
}

}  // namespace phub::server
