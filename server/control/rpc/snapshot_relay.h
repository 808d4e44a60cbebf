// One ReadSnapshot stream for another rack's snapshot. Reads a part from that rack's daemon, writes
// it to the client, then reads the next one; holds one part at a time. A reactor of gRPC's callback
// interface; lock and lifetime as in attend_stream.h.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <optional>

#include "server/control/ports/control_thread.h"
#include "server/control/rpc/rack_relay.h"
#include "server/control/rpc/stream_calls.h"

namespace phub::server {

class SnapshotRelay final : public grpc::ServerWriteReactor<v1::SnapshotPart> {
 public:
  SnapshotRelay(ControlThread& thread, RackRelay& relay, RackIndex from,
                const v1::ReadSnapshotRequest& request);

  // Under the lock. Begin: calls the other daemon. End: ends the stream.
  void Begin();
  void End(const absl::Status& status);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // Called under the lock when gRPC has finished with the stream.
  std::function<void()> on_done;
  std::shared_ptr<void> charge;  // the tenant pays until then

 private:
  // The other daemon's stream. It is held until no further read follows, since reads are started
  // from outside its callbacks.
  class Reader final : public grpc::ClientReadReactor<v1::SnapshotPart> {
   public:
    explicit Reader(SnapshotRelay& relay) : relay_(relay) {}
    void OnReadDone(bool ok) override { relay_.OnPart(ok); }
    void OnDone(const grpc::Status& status) override { relay_.OnReadEnd(status); }

   private:
    SnapshotRelay& relay_;
  };

  void OnPart(bool ok);
  void OnReadEnd(const grpc::Status& status);
  void Advance();

  ControlThread& thread_;
  RackRelay& relay_;
  const RackIndex from_;
  v1::ReadSnapshotRequest request_;
  grpc::ClientContext context_;
  Reader reader_{*this};
  v1::SnapshotPart part_;    // being read, then written
  bool begun_ = false;       // the other daemon was asked
  bool held_ = false;        // reader_ is held
  bool reading_ = false;     // a read is in progress
  bool reads_over_ = false;  // no further read follows
  bool read_ended_ = false;  // the other daemon's stream has ended
  bool writing_ = false;     // a write is in progress
  bool finished_ = false;
  StreamCalls calls_;
  std::optional<absl::Status> end_;
};

}  // namespace phub::server
