#include "server/control/grpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_replace.h"
#include "common/base/log.h"
#include "phub/v1/admin.grpc.pb.h"
#include "phub/v1/session.grpc.pb.h"
#include "server/control/attend_stream.h"
#include "server/control/load_stream.h"
#include "server/control/snapshot_stream.h"

namespace phub::server {
namespace {

constexpr const char* kSessionService = "phub.v1.Session";
constexpr int kMessageBytesMax = 4 << 20;
// Dead peers' connections are noticed and dropped; liveness itself is by heartbeats.
constexpr int kKeepaliveMs = 10'000;
constexpr int kKeepaliveTimeoutMs = 5'000;
// Clients may ping as often as they like: it costs little, and a refused ping would look like a
// dead daemon to them.
constexpr int kPingIntervalMsMin = 10;
constexpr int kPingStrikesUnlimited = 0;

// Calls that Control has not answered yet, so that shutting down can. Under ControlThread's lock;
// shared with the answers that Control holds, which may come after the server is gone.
class OpenCalls : public std::enable_shared_from_this<OpenCalls> {
 public:
  explicit OpenCalls(ControlThread& thread) : thread_(thread) {}

  // What Control is to call. The response and the reactor live until the reactor is finished.
  template <typename Response>
  Answer<Response> Open(grpc::ServerUnaryReactor* reactor, Response* response) {
    const std::uint64_t id = ++opened_;
    reactors_[id] = reactor;
    return [self = shared_from_this(), id, response](const absl::Status& status,
                                                     const Response& given) {
      if (!self->reactors_.contains(id)) return;  // finished when the server shut down
      *response = given;
      self->Finish(id, status);
    };
  }
  void FinishAll(const absl::Status& status) {
    while (!reactors_.empty()) Finish(reactors_.begin()->first, status);
  }

 private:
  void Finish(std::uint64_t id, const absl::Status& status) {
    grpc::ServerUnaryReactor* const reactor = reactors_[id];
    reactors_.erase(id);
    thread_.Defer([reactor, status = ToGrpcStatus(status)] { reactor->Finish(status); });
  }

  ControlThread& thread_;
  std::uint64_t opened_ = 0;
  std::map<std::uint64_t, grpc::ServerUnaryReactor*> reactors_;
};

// Hands one unary call to Control.
template <typename Response, typename Function>
grpc::ServerUnaryReactor* Serve(ControlThread& thread, OpenCalls& calls, const bool& closed,
                                grpc::CallbackServerContext* context, Response* response,
                                Function function) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  thread.Run([&](Control& control) {
    Answer<Response> answer = calls.Open(reactor, response);
    if (closed) return answer(absl::UnavailableError("phubd is stopping"), {});
    function(control, std::move(answer));
  });
  return reactor;
}

// "ipv4:10.0.0.5:40112" and "ipv6:%5B::1%5D:40112" as people write them.
std::string PeerAddress(const grpc::CallbackServerContext& context) {
  const std::string peer = context.peer();
  const bool has_scheme = peer.starts_with("ipv4:") || peer.starts_with("ipv6:");
  return absl::StrReplaceAll(peer.substr(has_scheme ? 5 : 0), {{"%5B", "["}, {"%5D", "]"}});
}

// What both services share, under ControlThread's lock.
struct Shared {
  explicit Shared(ControlThread& given)
      : thread(given), calls(std::make_shared<OpenCalls>(given)) {}
  ControlThread& thread;
  const std::shared_ptr<OpenCalls> calls;
  // How to end each stream that is open.
  std::map<const void*, std::function<void(const absl::Status&)>> streams;
  // Once draining began or ended for the administrator; without the lock.
  std::function<void(bool serving)> set_serving;
  bool closed = false;

  // Under the lock: a stream that has just begun.
  template <typename Stream>
  void Keep(Stream* stream) {
    stream->on_done = [this, stream] { streams.erase(stream); };
    streams[stream] = [stream](const absl::Status& status) { stream->End(status); };
    if (closed) stream->End(absl::UnavailableError("phubd is stopping"));
  }
};

class SessionService final : public v1::Session::CallbackService {
 public:
  explicit SessionService(Shared& shared) : shared_(shared) {}

  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context,
                                 const v1::JoinRequest* request,
                                 v1::JoinResponse* response) override {
    const std::string peer = PeerAddress(*context);
    return Serve(shared_.thread, *shared_.calls, shared_.closed, context, response,
                 [&](Control& control, Answer<v1::JoinResponse> answer) {
                   control.Join(*request, peer, std::move(answer));
                 });
  }

#define PHUB_UNARY(Method, Response)                                                           \
  grpc::ServerUnaryReactor* Method(grpc::CallbackServerContext* context,                       \
                                   const v1::Method##Request* request, v1::Response* response) \
      override {                                                                               \
    return Serve(                                                                              \
        shared_.thread, *shared_.calls, shared_.closed, context, response,                     \
        [&](Control& control, auto answer) { control.Method(*request, std::move(answer)); });  \
  }
  PHUB_UNARY(GetRack, Rack)
  PHUB_UNARY(Commit, CommitResponse)
  PHUB_UNARY(AddKeys, AddKeysResponse)
  PHUB_UNARY(OpenLanes, OpenLanesResponse)
  PHUB_UNARY(Barrier, BarrierResponse)
  PHUB_UNARY(Leave, LeaveResponse)
  PHUB_UNARY(GetVersions, GetVersionsResponse)
  PHUB_UNARY(GetLoadedState, LoadedState)
#undef PHUB_UNARY

  grpc::ServerBidiReactor<v1::Heartbeat, v1::SessionEvent>* Attend(
      grpc::CallbackServerContext*) override {
    auto* const stream = new AttendStream(shared_.thread);  // deletes itself in OnDone
    shared_.thread.Run([&](Control&) { shared_.Keep(stream); });
    return stream;
  }

  grpc::ServerReadReactor<v1::LoadStateRequest>* LoadState(
      grpc::CallbackServerContext*, v1::LoadStateResponse* response) override {
    auto* const stream = new LoadStream(shared_.thread, response);  // deletes itself in OnDone
    shared_.thread.Run([&](Control&) { shared_.Keep(stream); });
    return stream;
  }

 private:
  Shared& shared_;
};

class AdminService final : public v1::Admin::CallbackService {
 public:
  explicit AdminService(Shared& shared) : shared_(shared) {}

#define PHUB_UNARY(Method, Response)                                                           \
  grpc::ServerUnaryReactor* Method(grpc::CallbackServerContext* context,                       \
                                   const v1::Method##Request* request, v1::Response* response) \
      override {                                                                               \
    return Serve(                                                                              \
        shared_.thread, *shared_.calls, shared_.closed, context, response,                     \
        [&](Control& control, auto answer) { control.Method(*request, std::move(answer)); });  \
  }
  PHUB_UNARY(GetServer, ServerInfo)
  PHUB_UNARY(ListJobs, ListJobsResponse)
  PHUB_UNARY(GetJob, JobInfo)
  PHUB_UNARY(ListStalls, ListStallsResponse)
  PHUB_UNARY(GetStats, GetStatsResponse)
  PHUB_UNARY(EvictJob, JobInfo)
  PHUB_UNARY(GetJobVersions, GetVersionsResponse)
  PHUB_UNARY(BeginSnapshot, Snapshot)
#undef PHUB_UNARY

  grpc::ServerUnaryReactor* DrainServer(grpc::CallbackServerContext* context,
                                        const v1::DrainServerRequest* request,
                                        v1::ServerInfo* response) override {
    return Serve(shared_.thread, *shared_.calls, shared_.closed, context, response,
                 [&](Control& control, Answer<v1::ServerInfo> answer) {
                   control.DrainServer(*request, Tell(std::move(answer), /*serving=*/false));
                 });
  }
  grpc::ServerUnaryReactor* UndrainServer(grpc::CallbackServerContext* context,
                                          const v1::UndrainServerRequest* request,
                                          v1::ServerInfo* response) override {
    return Serve(shared_.thread, *shared_.calls, shared_.closed, context, response,
                 [&](Control& control, Answer<v1::ServerInfo> answer) {
                   control.UndrainServer(*request, Tell(std::move(answer), /*serving=*/true));
                 });
  }

  grpc::ServerWriteReactor<v1::SnapshotPart>* ReadSnapshot(
      grpc::CallbackServerContext*, const v1::ReadSnapshotRequest* request) override {
    auto* const stream = new SnapshotStream(shared_.thread, *request);  // deletes itself in OnDone
    shared_.thread.Run([&](Control& control) {
      shared_.Keep(stream);
      if (!shared_.closed) stream->Begin(control);
    });
    return stream;
  }

 private:
  // The health service says what the answer says, before whoever asked can look.
  Answer<v1::ServerInfo> Tell(Answer<v1::ServerInfo> answer, bool serving) {
    return [this, serving, answer = std::move(answer)](const absl::Status& status,
                                                       const v1::ServerInfo& info) {
      if (status.ok()) shared_.thread.Defer([this, serving] { shared_.set_serving(serving); });
      answer(status, info);
    };
  }

  Shared& shared_;
};

void SetUpProcessOnce() {
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
}

}  // namespace

struct GrpcServer::Impl {
  explicit Impl(ControlThread& thread) : shared(thread), session(shared), admin(shared) {}
  Shared shared;
  SessionService session;
  AdminService admin;
  std::unique_ptr<grpc::Server> server;
  int port = 0;
};

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrpcServer::~GrpcServer() { Shutdown(); }

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Create(ControlThread& thread,
                                                               const GrpcServerOptions& options) {
  SetUpProcessOnce();
  auto impl = std::make_unique<Impl>(thread);
  grpc::ServerBuilder builder;
  builder.RegisterService(&impl->session);
  builder.RegisterService(&impl->admin);
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  builder.SetMaxSendMessageSize(kMessageBytesMax);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // two daemons on one port: an error
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kPingIntervalMsMin);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, kPingStrikesUnlimited);
  const std::string address = fmt::format("{}:{}", options.host, options.port);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &impl->port);
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr || impl->port <= 0) {
    return absl::UnavailableError(fmt::format(
        "cannot listen on {} for control: the address is not this host's, or another process, "
        "perhaps another phubd, has the port",
        address));
  }
  std::unique_ptr<GrpcServer> server(new GrpcServer(std::move(impl)));
  server->impl_->shared.set_serving = [raw = server.get()](bool serving) {
    raw->SetServing(serving);
  };
  server->SetServing(true);
  LogInfo("event=control_listening host={} port={}", options.host, server->port());
  return server;
}

std::uint16_t GrpcServer::port() const { return static_cast<std::uint16_t>(impl_->port); }

void GrpcServer::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* const health = impl_->server->GetHealthCheckService();
  health->SetServingStatus(serving);  // the name ""
  health->SetServingStatus(kSessionService, serving);
}

void GrpcServer::Shutdown(DurationNs grace) {
  if (impl_->server == nullptr) return;
  // Every reactor must finish before gRPC lets go, and only we can finish them.
  impl_->shared.thread.Run([&](Control&) {
    impl_->shared.closed = true;
    const absl::Status status = absl::UnavailableError("phubd is stopping");
    impl_->shared.calls->FinishAll(status);
    for (const auto& [stream, end] : impl_->shared.streams) end(status);
  });
  impl_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::nanoseconds(grace));
  impl_->server->Wait();
  impl_->server.reset();
}

}  // namespace phub::server
