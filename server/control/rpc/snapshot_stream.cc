#include "server/control/rpc/snapshot_stream.h"

#include <utility>

#include "server/control/checkpoint/snapshots.h"
#include "server/control/rpc/attend_stream.h"

namespace phub::server {

// Control holds a reference to the sink. Under the lock.
class SnapshotStream::Sink final : public SnapshotSink {
 public:
  explicit Sink(SnapshotStream* stream) : stream_(stream) {}
  void Send(v1::SnapshotPart part) override {
    if (stream_ != nullptr) stream_->Send(std::move(part));
  }
  void End(const absl::Status& status) override {
    if (stream_ != nullptr) stream_->End(status);
  }
  void Forget() { stream_ = nullptr; }

 private:
  SnapshotStream* stream_;
};

SnapshotStream::SnapshotStream(ControlThread& thread, const v1::ReadSnapshotRequest& request)
    : thread_(thread),
      sink_(std::make_shared<Sink>(this)),
      request_(request),
      calls_(thread, "snapshot_stream", [this] { Advance(); }) {}

void SnapshotStream::Begin(Control& control) {
  const absl::Status status = control.snapshots().ReadSnapshot(request_, sink_);
  if (!status.ok()) End(status);
}

void SnapshotStream::Send(v1::SnapshotPart part) {
  if (end_.has_value()) return;
  part_ = std::move(part);
  writing_ = true;
  calls_.Start([this] { StartWrite(&part_); });
}

void SnapshotStream::End(const absl::Status& status) {
  if (!end_.has_value()) end_ = ToGrpcStatus(status);
  Advance();
}

void SnapshotStream::Advance() {
  if (finished_ || writing_ || calls_.pending() || !end_.has_value()) return;
  finished_ = true;
  thread_.Defer([this, status = *end_] { Finish(status); });
}

void SnapshotStream::OnWriteDone(bool ok) {
  thread_.Run({TurnKind::kStream, "snapshot_stream"}, [&](Control& control) {
    writing_ = false;
    if (ok && !end_.has_value()) {
      control.snapshots().SnapshotPartSent(request_.snapshot_id(), sink_.get());
    } else if (!ok) {
      control.snapshots().CancelSnapshot(request_.snapshot_id(), sink_.get());
      End(absl::CancelledError("the client disconnected"));
    }
    Advance();
  });
}

void SnapshotStream::OnCancel() {
  thread_.Run({TurnKind::kStream, "snapshot_stream"}, [&](Control& control) {
    control.snapshots().CancelSnapshot(request_.snapshot_id(), sink_.get());
    End(absl::CancelledError("the client cancelled the stream"));
  });
}

void SnapshotStream::OnDone() {
  thread_.Run({TurnKind::kStream, "snapshot_stream"}, [&](Control& control) {
    control.snapshots().CancelSnapshot(request_.snapshot_id(), sink_.get());
    sink_->Forget();
    if (on_done) on_done();
  });
  delete this;
}

}  // namespace phub::server
