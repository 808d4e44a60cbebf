// A gRPC service, generated from a list of RPCs (common/rpc/rpcs.h) and a class of handlers. Every
// RPC of the list is registered under its path, authorized and handled. A missing handler is a
// compile error. Only for the files of the services.
//
// Handlers has, for each RPC,
//   unary    void Handle(RpcCall<Rpc>&), under control's lock; or a method of Control
//            (control_methods.h)
//   streams  Open(Rpc, context, ...): returns the reactor; gets the arguments of gRPC's callback
//   API
//
// Methods are registered in the way of gRPC's generated services, which needs grpc::internal.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>

#include <cstddef>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "common/rpc/rpcs.h"
#include "server/control/rpc/control_methods.h"
#include "server/control/rpc/received.h"
#include "server/control/rpc/service.h"

namespace phub::server {

// One authorized unary call, under control's lock.
template <typename Rpc>
struct RpcCall {
  const grpc::CallbackServerContext* context;  // null if the call has waited for its turn
  Control& control;
  const Caller& caller;
  const typename Rpc::Request& request;  // scoped to the caller's tenant
  Answer<typename Rpc::Response> answer;
  // The same request, which lives as long as it is needed, also on other threads.
  std::shared_ptr<const typename Rpc::Request> owned;
};

template <typename Rpc>
inline constexpr std::size_t kBytesMaxOf =
    std::is_same_v<Rpc, rpc::AddKeys> || std::is_same_v<Rpc, rpc::Exchange> ? kLargeRequestBytesMax
                                                                            : kRequestBytesMax;

// Requests above this size are parsed in turns (request_turns.h).
template <typename Rpc>
inline constexpr std::size_t kAtOnceBytesMax =
    std::is_same_v<Rpc, rpc::AddKeys> ? 8 << 10 : std::numeric_limits<std::size_t>::max();

template <typename Handlers, typename List>
class GrpcService;

template <typename Handlers, typename... Rpcs>
class GrpcService<Handlers, rpc::List<Rpcs...>> final : public grpc::Service {
 public:
  template <typename... Arguments>
  explicit GrpcService(Shared& shared, Arguments... arguments)
      : shared_(shared), handlers_(shared, arguments...) {
    (Add<Rpcs>(), ...);
  }

 private:
  using Context = grpc::CallbackServerContext;

  template <typename Rpc>
  void Add() {
    using Request = typename Rpc::Request;
    using Response = typename Rpc::Response;
    using Method = grpc::internal::RpcMethod;
    if constexpr (Rpc::kKind == rpc::Kind::kUnary) {
      Register<Rpc>(Method::NORMAL_RPC,
                    new grpc::internal::CallbackUnaryHandler<Received<Request>, Written<Response>>(
                        [this](Context* context, const Received<Request>* received,
                               Written<Response>* response) {
                          return Serve<Rpc>(context, received->bytes, response);
                        }));
    } else if constexpr (Rpc::kKind == rpc::Kind::kClientStream) {
      Register<Rpc>(Method::CLIENT_STREAMING,
                    new grpc::internal::CallbackClientStreamingHandler<Received<Request>, Response>(
                        [this](Context* context, Response* response) {
                          return handlers_.Open(Rpc(), context, response);
                        }));
    } else if constexpr (Rpc::kKind == rpc::Kind::kServerStream) {
      Register<Rpc>(Method::SERVER_STREAMING,
                    new grpc::internal::CallbackServerStreamingHandler<Received<Request>, Response>(
                        [this](Context* context, const Received<Request>* received) {
                          Request request;
                          const ParseResult parsed = ParseRequest(received->bytes, request);
                          return handlers_.Open(Rpc(), context, request, parsed);
                        }));
    } else {
      Register<Rpc>(Method::BIDI_STREAMING,
                    new grpc::internal::CallbackBidiHandler<Received<Request>, Response>(
                        [this](Context* context) { return handlers_.Open(Rpc(), context); }));
    }
  }

  // The service takes ownership of the handler.
  template <typename Rpc>
  void Register(grpc::internal::RpcMethod::RpcType type, grpc::internal::MethodHandler* handler) {
    AddMethod(new grpc::internal::RpcServiceMethod(Rpc::kPath, type, nullptr));
    MarkMethodCallback(method_count_++, handler);
  }

  // Authorizes one call, parses its request and handles it.
  template <typename Rpc>
  grpc::ServerUnaryReactor* Serve(Context* context, grpc::ByteBuffer& bytes,
                                  Written<typename Rpc::Response>* response) {
    auto* const reactor = new CallReactor;
    Admission admission = shared_.access.Admit(*context, Rpc::kMethod);
    reactor->open = shared_.ChargeCall(admission);
    const bool waits =
        admission.status.ok() && bytes.Valid() && bytes.Length() > kAtOnceBytesMax<Rpc>;
    absl::StatusOr<RequestTurns::Token> charge = RequestTurns::Token();
    if (waits) charge = shared_.calls->turns().Charge(admission.caller.tenant, bytes.Length());
    if (!charge.ok()) admission.Add({charge.status(), ControlCounter::requests_refused_quota});
    if (waits && charge.ok()) {
      Wait<Rpc>(std::move(admission), bytes, *std::move(charge), reactor, response);
      return reactor;
    }
    const auto request = std::make_shared<typename Rpc::Request>();
    if (admission.status.ok()) admission.Add(ParseRequest(bytes, *request, kBytesMaxOf<Rpc>));
    shared_.thread.Run({TurnKind::kCall, Rpc::kPath}, [&](Control& control) {
      Handle<Rpc>(control, context, admission, request,
                  shared_.calls->Open(reactor, response, admission.caller.tenant));
    });
    return reactor;
  }

  // The call is open from now on, so a shutdown can answer it; its request waits as bytes.
  template <typename Rpc>
  void Wait(Admission admission, grpc::ByteBuffer& bytes, RequestTurns::Token charge,
            CallReactor* reactor, Written<typename Rpc::Response>* response) {
    using Request = typename Rpc::Request;
    const std::string tenant = admission.caller.tenant;
    const auto own = std::make_shared<grpc::ByteBuffer>();
    own->Swap(&bytes);
    auto answer = shared_.thread.Run({TurnKind::kCall, Rpc::kPath},
                                     [&](Control&) -> Answer<typename Rpc::Response> {
                                       auto opened = shared_.calls->Open(reactor, response, tenant);
                                       if (!shared_.closed) return opened;
                                       // Nothing would take the turn any more.
                                       opened(absl::UnavailableError("phubd is shutting down"), {});
                                       return nullptr;
                                     });
    if (answer == nullptr) return;
    shared_.calls->turns().Post(tenant, [this, admission = std::move(admission), own,
                                         charge = std::move(charge), answer = std::move(answer)](
                                            const RequestTurns::Token& turn) mutable {
      const std::shared_ptr<Request> request(new Request, [turn](Request* each) { delete each; });
      admission.Add(ParseRequest(*own, *request, kBytesMaxOf<Rpc>));
      charge.reset();
      shared_.thread.Run({TurnKind::kCall, Rpc::kPath}, [&](Control& control) {
        Handle<Rpc>(control, nullptr, admission, request, std::move(answer));
      });
    });
  }

  // Under the lock. The request was parsed, and will be freed, without it: it may be large.
  template <typename Rpc>
  void Handle(Control& control, const Context* context, const Admission& admission,
              const std::shared_ptr<typename Rpc::Request>& request,
              Answer<typename Rpc::Response> answer) {
    using Request = typename Rpc::Request;
    absl::Status status = admission.status;
    if (!status.ok()) {
      shared_.NoteRefusal(control, admission);
    } else if (shared_.closed) {
      status = absl::UnavailableError("phubd is shutting down");
    } else if constexpr (NamesTenant<Request>) {
      status = Scope(control, admission.caller, *request);
    } else if constexpr (NamesSession<Request>) {
      status = CheckSession(control, admission.caller, request->session_id());
    }
    if (!status.ok()) return answer(status, {});
    control.turns().SetPeer(PeerOf(admission.caller));
    HandleOne(
        RpcCall<Rpc>{context, control, admission.caller, *request, std::move(answer), request});
  }

  template <typename Rpc>
  void HandleOne(RpcCall<Rpc> call) {
    if constexpr (std::is_same_v<Rpc, rpc::AddKeys> ||
                  std::is_null_pointer_v<decltype(kControlMethod<Rpc>)>) {
      handlers_.Handle(call);
    } else {
      kControlMethod<Rpc>(call.control, call.request, std::move(call.answer));
    }
  }

  Shared& shared_;
  Handlers handlers_;
  int method_count_ = 0;
};

}  // namespace phub::server
