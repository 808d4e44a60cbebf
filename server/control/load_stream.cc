#include "server/control/load_stream.h"

#include <utility>

#include "server/control/access.h"
#include "server/control/attend_stream.h"

namespace phub::server {

LoadStream::LoadStream(ControlThread& thread, Caller caller, v1::LoadStateResponse* response)
    : thread_(thread), caller_(std::move(caller)), response_(response) {
  StartRead(&part_);
}

absl::Status LoadStream::Take(Control& control) {
  if (!load_.has_value()) {
    if (absl::Status own = CheckSession(control, caller_, part_.session_id()); !own.ok())
      return own;
    const absl::StatusOr<LoadId> load = control.BeginLoad(part_);
    if (!load.ok()) return load.status();
    load_ = *load;
  }
  return control.LoadPart(*load_, part_);
}

// The client closed its side: it has sent everything.
void LoadStream::Finish(Control& control) {
  if (!load_.has_value()) return End(absl::InvalidArgumentError("the load says nothing"));
  control.FinishLoad(*load_, [this, alive = alive_](const absl::Status& status,
                                                    const v1::LoadStateResponse& response) {
    if (!*alive) return;
    *response_ = response;
    End(status);
  });
}

void LoadStream::Cancel(Control& control) {
  if (load_.has_value()) control.CancelLoad(*load_);
}

void LoadStream::End(const absl::Status& status) {
  if (!end_.has_value()) end_ = ToGrpcStatus(status);
  Advance();
}

void LoadStream::Advance() {
  if (finished_ || starting_ || !end_.has_value()) return;
  finished_ = true;
  thread_.Defer([this, status = *end_] { ServerReadReactor::Finish(status); });
}

void LoadStream::OnReadDone(bool ok) {
  thread_.Run([&](Control& control) {
    if (end_.has_value()) return;
    if (!ok) return Finish(control);
    const absl::Status status = Take(control);
    if (!status.ok()) return End(status);
    starting_ = true;
    thread_.Defer([this] {
      StartRead(&part_);
      thread_.Run([this](Control&) {
        starting_ = false;
        Advance();
      });
    });
  });
}

void LoadStream::OnCancel() {
  thread_.Run([&](Control& control) {
    Cancel(control);
    End(absl::CancelledError("the client cancelled the stream"));
  });
}

void LoadStream::OnDone() {
  thread_.Run([&](Control& control) {
    *alive_ = false;
    Cancel(control);
    if (on_done) on_done();
  });
  delete this;
}

}  // namespace phub::server
