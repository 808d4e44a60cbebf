#include "server/control/rpc/snapshot_relay.h"

#include <utility>

#include "server/control/rpc/attend_stream.h"

namespace phub::server {

SnapshotRelay::SnapshotRelay(ControlThread& thread, RackRelay& relay, RackIndex from,
                             const v1::ReadSnapshotRequest& request)
    : thread_(thread),
      relay_(relay),
      from_(from),
      request_(request),
      calls_(thread, "snapshot_relay", [this] { Advance(); }) {
  request_.mutable_rack()->set_passed_on(true);
}

void SnapshotRelay::Begin() {
  begun_ = held_ = reading_ = true;
  calls_.Start([this] {
    relay_.admin(from_)->async()->ReadSnapshot(&context_, &request_, &reader_);
    reader_.AddHold();
    reader_.StartRead(&part_);
    reader_.StartCall();
  });
}

void SnapshotRelay::End(const absl::Status& status) {
  if (finished_) return;  // gRPC may have finished the stream before this runs
  if (!end_.has_value()) end_ = status;
  if (begun_) calls_.Start([this] { context_.TryCancel(); });
  Advance();
}

void SnapshotRelay::OnPart(bool ok) {
  thread_.Run({TurnKind::kStream, "snapshot_relay"}, [&](Control&) {
    reading_ = false;
    if (ok && !end_.has_value()) {
      writing_ = true;
      calls_.Start([this] { StartWrite(&part_); });
    } else {
      reads_over_ = true;
    }
    Advance();
  });
}

void SnapshotRelay::OnWriteDone(bool ok) {
  thread_.Run({TurnKind::kStream, "snapshot_relay"}, [&](Control&) {
    writing_ = false;
    if (!ok) End(absl::CancelledError("the client disconnected"));
    if (end_.has_value()) {
      reads_over_ = true;
    } else {
      reading_ = true;
      calls_.Start([this] { reader_.StartRead(&part_); });
    }
    Advance();
  });
}

void SnapshotRelay::OnReadEnd(const grpc::Status& status) {
  thread_.Run({TurnKind::kStream, "snapshot_relay"}, [&](Control&) {
    read_ended_ = true;
    if (!end_.has_value()) end_ = relay_.SaidBy(from_, status);
    Advance();
  });
}

void SnapshotRelay::Advance() {
  if (calls_.pending() || reading_ || writing_ || finished_) return;
  if (held_ && reads_over_) {
    held_ = false;
    return calls_.Start([this] { reader_.RemoveHold(); });
  }
  if (!end_.has_value() || (begun_ && !read_ended_)) return;
  finished_ = true;
  thread_.Defer([this, status = ToGrpcStatus(*end_)] { Finish(status); });
}

void SnapshotRelay::OnCancel() {
  thread_.Run({TurnKind::kStream, "snapshot_relay"},
              [&](Control&) { End(absl::CancelledError("the client cancelled the stream")); });
}

void SnapshotRelay::OnDone() {
  thread_.Run({TurnKind::kStream, "snapshot_relay"}, [&](Control&) {
    if (on_done) on_done();
  });
  delete this;
}

}  // namespace phub::server
