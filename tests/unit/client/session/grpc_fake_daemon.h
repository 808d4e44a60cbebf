// The fake daemon's control plane over real gRPC on loopback.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>

#include "common/base/check.h"
#include "phub/v1/session.grpc.pb.h"
#include "tests/unit/client/session/fake_daemon.h"

namespace phub::client {

class GrpcFakeDaemon final : public v1::Session::Service {
 public:
  explicit GrpcFakeDaemon(const FakeDaemonOptions& options = {}) : daemon_(options) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    PHUB_CHECK(server_ != nullptr && port_ != 0);
  }
  ~GrpcFakeDaemon() override { Die(); }

  std::string endpoint() const { return "127.0.0.1:" + std::to_string(port_); }
  FakeDaemon& daemon() { return daemon_; }
  void Die() {
    daemon_.Die();
    server_->Shutdown(std::chrono::system_clock::now());
  }

 private:
  static grpc::Status ToGrpc(const absl::Status& status) {
    return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                        std::string(status.message()));
  }

  grpc::Status GetRack(grpc::ServerContext*, const v1::GetRackRequest*,
                       v1::Rack* response) override {
    return ToGrpc(daemon_.HandleGetRack(*response));
  }
  grpc::Status Commit(grpc::ServerContext*, const v1::CommitRequest*,
                      v1::CommitResponse*) override {
    return ToGrpc(daemon_.HandleCommit());
  }
  grpc::Status Join(grpc::ServerContext*, const v1::JoinRequest* request,
                    v1::JoinResponse* response) override {
    return ToGrpc(daemon_.HandleJoin(*request, *response));
  }
  grpc::Status AddKeys(grpc::ServerContext*, const v1::AddKeysRequest* request,
                       v1::AddKeysResponse* response) override {
    return ToGrpc(daemon_.HandleAddKeys(*request, *response));
  }
  grpc::Status OpenLanes(grpc::ServerContext*, const v1::OpenLanesRequest* request,
                         v1::OpenLanesResponse* response) override {
    return ToGrpc(daemon_.HandleOpenLanes(*request, *response));
  }
  grpc::Status Barrier(grpc::ServerContext* context, const v1::BarrierRequest* request,
                       v1::BarrierResponse*) override {
    return ToGrpc(daemon_.HandleBarrier(*request, [context] { return context->IsCancelled(); }));
  }
  grpc::Status Leave(grpc::ServerContext*, const v1::LeaveRequest* request,
                     v1::LeaveResponse*) override {
    return ToGrpc(daemon_.HandleLeave(*request));
  }
  grpc::Status LoadState(grpc::ServerContext*, grpc::ServerReader<v1::LoadStateRequest>* reader,
                         v1::LoadStateResponse*) override {
    v1::LoadStateRequest request;
    while (reader->Read(&request))
      if (const absl::Status status = daemon_.HandleLoadState(request); !status.ok())
        return ToGrpc(status);
    return grpc::Status::OK;
  }
  grpc::Status GetLoadedState(grpc::ServerContext*, const v1::GetLoadedStateRequest*,
                              v1::LoadedState* response) override {
    return ToGrpc(daemon_.HandleGetLoadedState(*response));
  }
  grpc::Status Attend(grpc::ServerContext*,
                      grpc::ServerReaderWriter<v1::SessionEvent, v1::Heartbeat>* stream) override {
    const absl::Status opened =
        daemon_.StreamOpened([stream](const v1::SessionEvent& event) { stream->Write(event); },
                             [](const absl::Status&) {});
    if (!opened.ok()) return ToGrpc(opened);
    v1::Heartbeat heartbeat;
    while (stream->Read(&heartbeat)) daemon_.HandleHeartbeat(heartbeat);
    daemon_.StreamClosed();
    return grpc::Status::OK;
  }

  FakeDaemon daemon_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace phub::client
