#include "server/control/rpc/load_stream.h"

#include <algorithm>
#include <utility>

#include "server/control/checkpoint/loads.h"
#include "server/control/rpc/access.h"
#include "server/control/rpc/attend_stream.h"

namespace phub::server {

LoadStream::LoadStream(ControlThread& thread, Caller caller, RackRelay* relay,
                       v1::LoadStateResponse* response)
    : thread_(thread),
      caller_(std::move(caller)),
      relay_(relay),
      response_(response),
      calls_(thread, "load_stream", [this] { Advance(); }) {
  StartRead(&received_);
}

absl::Status LoadStream::Take(Control& control) {
  if (!load_.has_value()) {
    if (absl::Status own = CheckLoad(control, caller_, part_); !own.ok()) return own;
    // Control takes over the keys, which may be many.
    v1::LoadStateRequest first;
    first.Swap(&part_);
    part_.mutable_pieces()->Swap(first.mutable_pieces());
    const absl::StatusOr<LoadId> load = control.loads().BeginLoad(std::move(first));
    if (!load.ok()) return load.status();
    load_ = *load;
    const auto resume = [this, alive = alive_, thread = &thread_] {
      thread->Defer([this, alive, thread] {
        thread->Run({TurnKind::kStream, "load"}, [&](Control& under_lock) {
          if (*alive) Resume(under_lock);
        });
      });
    };
    waiting_ = !control.loads().AcceptsParts(*load_, resume);
    if (waiting_) return absl::OkStatus();
  }
  return TakePart(control);
}

// The daemon accepts parts from now on: the first one is still there.
void LoadStream::Resume(Control& control) {
  waiting_ = false;
  if (end_.has_value()) return;
  const absl::Status status = TakePart(control);
  if (!status.ok()) return End(status);
  Continue(control);
}

// Takes a part in several turns if it has many pieces.
absl::Status LoadStream::TakePart(Control& control) {
  absl::Status status = control.loads().LoadPieces(*load_, part_, next_piece_);
  if (!status.ok()) return status;
  if (next_piece_ < Loads::UnitsOf(part_)) {
    waiting_ = true;
    control.loads().Later(*load_, [this, alive = alive_, &control] {
      if (*alive) Resume(control);
    });
    return absl::OkStatus();
  }
  next_piece_ = 0;
  return PassOn(control);
}

// No relay is busy here: the next part is read only after all relays have sent theirs.
absl::Status LoadStream::PassOn(Control& control) {
  for (auto& [rack, part] : control.loads().PartsForRacks(*load_)) {
    if (relay_ == nullptr)
      return absl::UnimplementedError("this daemon has no connection to other racks");
    if (relays_.empty()) {
      job_ = Incarnation{part.incarnation()};
      relay_->loads().Begin(job_, this, [this] {
        End(absl::AbortedError("a newer load of the job's checkpoint has begun"));
      });
    }
    std::shared_ptr<LoadRelay>& relay = relays_[rack];
    if (relay == nullptr) {
      relay = std::make_shared<LoadRelay>(thread_, *relay_, RackIndex{rack},
                                          [this, alive = alive_](Control& under_lock) {
                                            if (*alive) Continue(under_lock);
                                          });
      relay->Begin();
    }
    if (relay->over()) continue;  // Continue reports the reason
    relay->Write(std::move(part));
  }
  return absl::OkStatus();
}

// Called whenever something has changed. Reads the next part once all relays have sent the last
// one, and finishes once all have sent everything.
void LoadStream::Continue(Control& control) {
  const auto any = [&](auto is) {
    return std::any_of(relays_.begin(), relays_.end(),
                       [&](const auto& each) { return is(*each.second); });
  };
  for (const auto& [rack, relay] : relays_) {
    if (relay->over() && !relay->status().ok()) End(relay->status());
  }
  if (end_.has_value()) return Advance();
  if (reading_ || waiting_ || any([](const LoadRelay& each) { return each.busy(); })) return;
  if (!come_) return Read();
  if (finishing_ || any([](const LoadRelay& each) { return !each.over(); })) return;
  finishing_ = true;
  Finish(control);
}

// The client closed its side, so it has sent everything.
void LoadStream::Finish(Control& control) {
  if (!load_.has_value())
    return End(absl::InvalidArgumentError("the LoadState call contains no message"));
  control.loads().FinishLoad(*load_, [this, alive = alive_](const absl::Status& status,
                                                            const v1::LoadStateResponse& response) {
    if (!*alive) return;
    *response_ = response;
    End(status);
  });
}

void LoadStream::Cancel(Control& control) {
  if (load_.has_value()) control.loads().CancelLoad(*load_);
}

void LoadStream::End(const absl::Status& status) {
  if (!end_.has_value()) end_ = ToGrpcStatus(status);
  if (!end_->ok()) {
    for (const auto& [rack, relay] : relays_) relay->Cancel();
  }
  Advance();
}

void LoadStream::Advance() {
  if (finished_ || calls_.pending() || !end_.has_value()) return;
  for (const auto& [rack, relay] : relays_) {
    if (!relay->over()) return;  // Continue is called then
  }
  finished_ = true;
  thread_.Defer([this, status = *end_] { ServerReadReactor::Finish(status); });
}

void LoadStream::Read() {
  reading_ = true;
  calls_.Start([this] { StartRead(&received_); });
}

void LoadStream::OnReadDone(bool ok) {
  ParseResult parsed;
  if (ok) parsed = ParseRequest(received_.bytes, part_, kLargeRequestBytesMax);
  thread_.Run({TurnKind::kStream, "load_stream"}, [&](Control& control) {
    reading_ = false;
    if (end_.has_value()) return;
    if (!parsed.status.ok()) {
      control.counters().Add(parsed.refused);
      return End(parsed.status);
    }
    if (ok) {
      const absl::Status status = Take(control);
      if (!status.ok()) return End(status);
    } else {
      come_ = true;
      for (const auto& [rack, relay] : relays_) relay->Close();
    }
    Continue(control);
  });
}

void LoadStream::OnCancel() {
  thread_.Run({TurnKind::kStream, "load_stream"}, [&](Control& control) {
    Cancel(control);
    End(absl::CancelledError("the client cancelled the stream"));
  });
}

void LoadStream::OnDone() {
  thread_.Run({TurnKind::kStream, "load_stream"}, [&](Control& control) {
    *alive_ = false;
    Cancel(control);
    if (!relays_.empty()) relay_->loads().Over(job_, this);
    if (on_done) on_done();
  });
  delete this;
}

}  // namespace phub::server
