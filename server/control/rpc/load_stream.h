// One LoadState stream: receives a checkpoint, message by message. Each message is handled before
// the next one is read. If the job spans racks, the parts of other racks are forwarded to their
// daemons, which accept them before the next message is read. A reactor of gRPC's callback
// interface; lock and lifetime as in attend_stream.h.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "server/control/ports/control_thread.h"
#include "server/control/rpc/load_relay.h"
#include "server/control/rpc/received.h"
#include "server/control/rpc/stream_calls.h"
#include "server/tenant/caller.h"

namespace phub::server {

class LoadStream final : public grpc::ServerReadReactor<Received<v1::LoadStateRequest>> {
 public:
  // `caller`: the stream may load only this caller's jobs. `relay`: null if there are no other
  // racks.
  LoadStream(ControlThread& thread, Caller caller, RackRelay* relay,
             v1::LoadStateResponse* response);

  // Under the lock: ends the stream from the server's side.
  void End(const absl::Status& status);

  void OnReadDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // Called under the lock when gRPC has finished with the stream.
  std::function<void()> on_done;
  std::shared_ptr<void> charge;  // the tenant pays until then

 private:
  absl::Status Take(Control& control);
  absl::Status TakePart(Control& control);
  void Resume(Control& control);
  absl::Status PassOn(Control& control);
  void Finish(Control& control);
  void Cancel(Control& control);
  void Continue(Control& control);
  void Read();
  void Advance();

  ControlThread& thread_;
  const Caller caller_;
  RackRelay* const relay_;
  v1::LoadStateResponse* const response_;
  Received<v1::LoadStateRequest> received_;  // being read
  v1::LoadStateRequest part_;
  std::optional<LoadId> load_;                                  // set by the first message
  std::map<std::uint32_t, std::shared_ptr<LoadRelay>> relays_;  // by rack
  Incarnation job_;                                             // set if there are relays
  int next_piece_ = 0;                                          // of part_
  bool reading_ = true;   // waiting for a part, or for the client to close its side
  bool waiting_ = false;  // the daemon does not accept part_ yet
  bool come_ = false;     // the client has sent everything
  bool finishing_ = false;
  bool finished_ = false;
  // Whether the stream still exists, for the answer that Control holds.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::optional<grpc::Status> end_;
  StreamCalls calls_;
};

}  // namespace phub::server
