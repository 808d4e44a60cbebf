#include "server/control/rpc/attend_stream.h"

#include <utility>

#include "common/rpc/outage.h"
#include "server/control/ranks/liveness.h"
#include "server/control/rpc/access.h"

namespace phub::server {

namespace {

// It has a session id and a number. The memory of a large one would stay.
constexpr std::size_t kHeartbeatBytesMax = 4096;

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
          rpc::AnswerDetails(static_cast<int>(status.code()))};
}

// Control holds a reference to the sink. Under the lock.
class AttendStream::Sink final : public EventSink {
 public:
  explicit Sink(AttendStream* stream) : stream_(stream) {}
  void Send(const v1::SessionEvent& event) override {
    if (stream_ != nullptr) stream_->Send(event);
  }
  void End(const absl::Status& status) override {
    if (stream_ != nullptr) stream_->End(status);
  }
  void Forget() { stream_ = nullptr; }

 private:
  AttendStream* stream_;
};

AttendStream::AttendStream(ControlThread& thread, Caller caller)
    : thread_(thread),
      caller_(std::move(caller)),
      sink_(std::make_shared<Sink>(this)),
      calls_(thread, "attend_stream", [this] { Advance(); }) {
  StartRead(&received_);
}

// Writes the next event, or finishes once everything is written.
void AttendStream::Advance() {
  if (finished_ || writing_) return;
  if (peer_gone_) waiting_.Clear();
  if (!waiting_.empty()) {
    writing_ = true;
    outgoing_ = waiting_.Pop();
    calls_.Start([this] { StartWrite(&outgoing_); });
    return;
  }
  if (end_.has_value() && !calls_.pending()) {
    finished_ = true;
    thread_.Defer([this, status = *end_] { Finish(status); });
  }
}

void AttendStream::Send(const v1::SessionEvent& event) {
  if (end_.has_value()) return;
  if (waiting_.Push(event)) ++replaced_;
  Advance();
}

void AttendStream::End(const absl::Status& status) {
  if (!end_.has_value()) end_ = ToGrpcStatus(status);
  Advance();
}

void AttendStream::CountReplaced(Control& control) {
  control.counters().Add(ControlCounter::events_replaced, std::exchange(replaced_, 0));
}

void AttendStream::Detach(Control& control) {
  CountReplaced(control);
  if (!session_id_.empty()) control.liveness().DetachStream(session_id_, stream_);
}

void AttendStream::HandleHeartbeat(Control& control) {
  if (session_id_.empty()) {
    if (heartbeat_.session_id().empty()) {
      return End(absl::InvalidArgumentError("the heartbeat has no session id"));
    }
    const absl::Status own = CheckSession(control, caller_, heartbeat_.session_id());
    if (!own.ok()) return End(own);
    const absl::StatusOr<StreamId> stream =
        control.liveness().AttachStream(heartbeat_.session_id(), sink_);
    if (!stream.ok()) return End(stream.status());
    session_id_ = heartbeat_.session_id();
    stream_ = *stream;
  }
  if (heartbeat_.session_id() != session_id_) {
    Detach(control);
    return End(absl::InvalidArgumentError(
        "the heartbeat names another session; use one Attend stream per session"));
  }
  const absl::Status status = control.liveness().Heartbeat(session_id_, heartbeat_.sequence());
  if (!status.ok()) End(status);
}

void AttendStream::OnReadDone(bool ok) {
  ParseResult parsed;
  if (ok) parsed = ParseRequest(received_.bytes, heartbeat_, kHeartbeatBytesMax);
  thread_.Run({TurnKind::kStream, "attend_stream"}, [&](Control& control) {
    if (!ok) {  // the client closed its side or disconnected
      Detach(control);
      return End(absl::OkStatus());
    }
    CountReplaced(control);
    if (!parsed.status.ok()) {
      control.counters().Add(parsed.refused);
      Detach(control);
      return End(parsed.status);
    }
    if (!end_.has_value()) HandleHeartbeat(control);
    if (!finished_ && !end_.has_value()) calls_.Start([this] { StartRead(&received_); });
  });
}

void AttendStream::OnWriteDone(bool ok) {
  thread_.Run({TurnKind::kStream, "attend_stream"}, [&](Control&) {
    writing_ = false;
    if (!ok) peer_gone_ = true;
    Advance();
  });
}

void AttendStream::OnCancel() {
  thread_.Run({TurnKind::kStream, "attend_stream"}, [&](Control& control) {
    peer_gone_ = true;
    Detach(control);
    End(absl::CancelledError("the client cancelled the stream"));
  });
}

void AttendStream::OnDone() {
  thread_.Run({TurnKind::kStream, "attend_stream"}, [&](Control& control) {
    Detach(control);
    sink_->Forget();
    if (on_done) on_done();
  });
  delete this;
}

}  // namespace phub::server
