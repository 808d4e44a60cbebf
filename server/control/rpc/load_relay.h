// What of a LoadState is another rack's: a stream to that rack's daemon. One part is under way at a
// time. A reactor of gRPC's callback interface; lock as in attend_stream.h. It keeps itself until
// the stream is over; whoever made it waits for that.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "server/control/ports/control_thread.h"
#include "server/control/rpc/rack_relay.h"

namespace phub::server {

class LoadRelay final : public grpc::ClientWriteReactor<v1::LoadStateRequest>,
                        public std::enable_shared_from_this<LoadRelay> {
 public:
  // on_change: a part was taken, or the stream is over. Called under the lock.
  LoadRelay(ControlThread& thread, RackRelay& relay, RackIndex to,
            std::function<void(Control&)> on_change)
      : thread_(thread), relay_(relay), to_(to), on_change_(std::move(on_change)) {}

  // All of these under the lock.
  void Begin();
  void Write(v1::LoadStateRequest part);  // REQUIRES: !busy() && !over()
  void Close();                           // that was all of it
  void Cancel();
  // A part is under way, or nothing can be written and why is still to come.
  bool busy() const { return writing_ || (broken_ && !over_); }
  bool over() const { return over_; }
  const absl::Status& status() const { return status_; }  // of over(): what came of it

  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  // `start` is called without the lock; meanwhile the stream is held.
  void Start(std::function<void()> start);
  void Advance();

  ControlThread& thread_;
  RackRelay& relay_;
  const RackIndex to_;
  const std::function<void(Control&)> on_change_;
  std::shared_ptr<LoadRelay> self_;  // until it is over
  grpc::ClientContext context_;
  v1::LoadStateRequest part_;  // under way
  v1::LoadStateResponse response_;
  bool held_ = false;     // further writes may follow
  bool writing_ = false;  // from Write to OnWriteDone
  bool closing_ = false;
  bool broken_ = false;  // nothing can be written any more
  bool over_ = false;
  int starting_ = 0;  // calls of Start that have not returned
  absl::Status status_;
};

}  // namespace phub::server
