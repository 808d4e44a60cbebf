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

#include <type_traits>
#include <utility>
#include <variant>

#include "common/rpc/rpcs.h"
#include "server/control/rpc/control_methods.h"
#include "server/control/rpc/service.h"

namespace phub::server {

// One authorized unary call, under control's lock.
template <typename Rpc>
struct RpcCall {
  const grpc::CallbackServerContext& context;
  Control& control;
  const Caller& caller;
  const typename Rpc::Request& request;  // scoped to the caller's tenant
  Answer<typename Rpc::Response> answer;
  // A copy that lives as long as it is needed, also on other threads; null unless OwnsRequest.
  std::shared_ptr<const typename Rpc::Request> owned;
};

// Requests that may be large are copied before the lock is taken.
template <typename Rpc>
inline constexpr bool OwnsRequest =
    std::is_same_v<Rpc, rpc::AddKeys> || std::is_same_v<Rpc, rpc::Exchange>;

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
                    new grpc::internal::CallbackUnaryHandler<Request, Response>(
                        [this](Context* context, const Request* request, Response* response) {
                          return Serve<Rpc>(context, request, response);
                        }));
    } else if constexpr (Rpc::kKind == rpc::Kind::kClientStream) {
      Register<Rpc>(Method::CLIENT_STREAMING,
                    new grpc::internal::CallbackClientStreamingHandler<Request, Response>(
                        [this](Context* context, Response* response) {
                          return handlers_.Open(Rpc(), context, response);
                        }));
    } else if constexpr (Rpc::kKind == rpc::Kind::kServerStream) {
      Register<Rpc>(Method::SERVER_STREAMING,
                    new grpc::internal::CallbackServerStreamingHandler<Request, Response>(
                        [this](Context* context, const Request* request) {
                          return handlers_.Open(Rpc(), context, request);
                        }));
    } else {
      Register<Rpc>(Method::BIDI_STREAMING,
                    new grpc::internal::CallbackBidiHandler<Request, Response>(
                        [this](Context* context) { return handlers_.Open(Rpc(), context); }));
    }
  }

  // The service takes ownership of the handler.
  template <typename Rpc>
  void Register(grpc::internal::RpcMethod::RpcType type, grpc::internal::MethodHandler* handler) {
    AddMethod(new grpc::internal::RpcServiceMethod(Rpc::kPath, type, nullptr));
    MarkMethodCallback(method_count_++, handler);
  }

  // Authorizes one call and handles it.
  template <typename Rpc>
  grpc::ServerUnaryReactor* Serve(Context* context, const typename Rpc::Request* request,
                                  typename Rpc::Response* response) {
    using Request = typename Rpc::Request;
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    const Admission admission = shared_.access.Admit(*context, Rpc::kMethod);
    std::shared_ptr<const Request> owned;
    if (OwnsRequest<Rpc> && admission.status.ok()) owned = std::make_shared<Request>(*request);
    // A copy may be large, so it is made and freed without the lock.
    [[maybe_unused]] std::conditional_t<NamesTenant<Request>, Request, std::monostate> scoped;
    if constexpr (NamesTenant<Request>) {
      if (admission.status.ok()) scoped = *request;
    }
    shared_.thread.Run({TurnKind::kCall, Rpc::kPath}, [&](Control& control) {
      auto answer = shared_.calls->Open(reactor, response);
      if (!admission.status.ok()) {
        shared_.NoteRefusal(control, admission);
        return answer(admission.status, {});
      }
      if (shared_.closed) return answer(absl::UnavailableError("phubd is shutting down"), {});
      if constexpr (NamesTenant<Request>) {
        const absl::Status status = Scope(control, admission.caller, scoped);
        if (!status.ok()) return answer(status, {});
        HandleOne(RpcCall<Rpc>{*context, control, admission.caller, scoped, std::move(answer), {}});
      } else {
        absl::Status status;
        if constexpr (NamesSession<Request>) {
          status = CheckSession(control, admission.caller, request->session_id());
        }
        if (!status.ok()) return answer(status, {});
        HandleOne(RpcCall<Rpc>{*context, control, admission.caller, *request, std::move(answer),
                               std::move(owned)});
      }
    });
    return reactor;
  }

  template <typename Rpc>
  void HandleOne(RpcCall<Rpc> call) {
    if constexpr (OwnsRequest<Rpc>) {
      handlers_.Handle(call);
    } else if constexpr (std::is_null_pointer_v<decltype(kControlMethod<Rpc>)>) {
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
