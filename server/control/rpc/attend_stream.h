// One Attend stream: receives heartbeats and sends events. A reactor of gRPC's callback interface.
//
// Lock and lifetime. All state is under ControlThread's lock. gRPC's Start... and Finish are called
// without it (Defer), since they may call back. Finish is called once, when no write is in progress
// and no Start... call is being made, so gRPC cannot destroy the reactor during such a call.
// Finally gRPC calls OnDone, which deletes the reactor. Control's sink may outlive the reactor and
// then ignores events.
//
// Memory. A client that does not read its stream costs one event of each kind (event_queue.h) and
// the one that gRPC is writing.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>

#include "server/control/ports/control_thread.h"
#include "server/control/rpc/event_queue.h"
#include "server/control/rpc/received.h"
#include "server/control/rpc/stream_calls.h"
#include "server/tenant/caller.h"

namespace phub::server {

grpc::Status ToGrpcStatus(const absl::Status& status);

class AttendStream final
    : public grpc::ServerBidiReactor<Received<v1::Heartbeat>, v1::SessionEvent> {
 public:
  // `caller`: the stream may attend only this caller's sessions.
  AttendStream(ControlThread& thread, Caller caller);

  // Under the lock: ends the stream from the server's side.
  void End(const absl::Status& status);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // Called under the lock when gRPC has finished with the stream.
  std::function<void()> on_done;
  std::shared_ptr<void> charge;  // the tenant pays until then

 private:
  class Sink;
  void Send(const v1::SessionEvent& event);
  void HandleHeartbeat(Control& control);
  void Detach(Control& control);
  void CountReplaced(Control& control);
  void Advance();

  ControlThread& thread_;
  const Caller caller_;
  std::shared_ptr<Sink> sink_;
  Received<v1::Heartbeat> received_;  // being read
  v1::Heartbeat heartbeat_;
  std::string session_id_;  // empty until the first heartbeat attached the stream
  StreamId stream_ = 0;
  EventQueue waiting_;
  std::uint64_t replaced_ = 0;  // events that a newer one replaced and that are not counted yet
  v1::SessionEvent outgoing_;   // being written
  bool writing_ = false;
  bool peer_gone_ = false;
  bool finished_ = false;
  StreamCalls calls_;
  std::optional<grpc::Status> end_;
};

}  // namespace phub::server
