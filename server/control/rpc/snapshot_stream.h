// One ReadSnapshot stream: gets a request and sends a snapshot's parts; each part is written before
// the next one is requested. A reactor of gRPC's callback interface; lock and lifetime as in
// attend_stream.h.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <optional>

#include "server/control/ports/control_thread.h"
#include "server/control/rpc/stream_calls.h"

namespace phub::server {

class SnapshotStream final : public grpc::ServerWriteReactor<v1::SnapshotPart> {
 public:
  SnapshotStream(ControlThread& thread, const v1::ReadSnapshotRequest& request);

  // Under the lock. Begin: requests the snapshot. End: ends the stream.
  void Begin(Control& control);
  void End(const absl::Status& status);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // Called under the lock when gRPC has finished with the stream.
  std::function<void()> on_done;
  std::shared_ptr<void> charge;  // the tenant pays until then

 private:
  class Sink;
  void Send(v1::SnapshotPart part);
  void Advance();

  ControlThread& thread_;
  std::shared_ptr<Sink> sink_;
  const v1::ReadSnapshotRequest request_;
  v1::SnapshotPart part_;  // being written
  bool writing_ = false;   // from the decision to write until OnWriteDone
  bool finished_ = false;
  StreamCalls calls_;
  std::optional<grpc::Status> end_;
};

}  // namespace phub::server
