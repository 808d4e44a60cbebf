// Forwards another rack's parts of a LoadState stream to that rack's daemon, one part at a time. A
// reactor of gRPC's callback interface; lock as in attend_stream.h. It keeps itself alive until its
// stream ends, and its creator waits for that.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "server/control/ports/control_thread.h"
#include "server/control/rpc/rack_relay.h"
#include "server/control/rpc/stream_calls.h"

namespace phub::server {

class LoadRelay final : public grpc::ClientWriteReactor<v1::LoadStateRequest>,
                        public std::enable_shared_from_this<LoadRelay> {
 public:
  // on_change: called under the lock when a part was accepted or the stream has ended.
  LoadRelay(ControlThread& thread, RackRelay& relay, RackIndex to,
            std::function<void(Control&)> on_change)
      : thread_(thread),
        relay_(relay),
        to_(to),
        on_change_(std::move(on_change)),
        calls_(thread, "load_relay", [this] { Advance(); }) {}

  // All of these under the lock.
  void Begin();
  void Write(v1::LoadStateRequest part);  // REQUIRES: !busy() && !over()
  void Close();                           // no more parts follow
  void Cancel();
  // A part is being sent, or writing failed and the reason has not arrived yet.
  bool busy() const { return writing_ || (broken_ && !over_); }
  bool over() const { return over_; }
  const absl::Status& status() const { return status_; }  // the result, once over()

  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  // Calls `call` without the lock; until it returns the stream is held.
  void Start(std::function<void()> call);
  void Advance();

  ControlThread& thread_;
  RackRelay& relay_;
  const RackIndex to_;
  const std::function<void(Control&)> on_change_;
  std::shared_ptr<LoadRelay> self_;  // until the stream has ended
  grpc::ClientContext context_;
  v1::LoadStateRequest part_;  // being sent
  v1::LoadStateResponse response_;
  bool held_ = false;     // further writes may follow
  bool writing_ = false;  // from Write to OnWriteDone
  bool closing_ = false;
  bool broken_ = false;  // no further write is possible
  bool over_ = false;
  StreamCalls calls_;
  absl::Status status_;
};

}  // namespace phub::server
