#include "client/session/grpc_control_channel.h"

#include <chrono>
#include <optional>
#include <utility>

#include "common/base/check.h"

namespace phub::client {
namespace {

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  // The codes of gRPC and Abseil are the same numbers.
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace

// The Attend stream. Writes are started from outside its reactions, so it holds the stream open
// until reading ended.
class GrpcControlChannel::Attendance final
    : public grpc::ClientBidiReactor<v1::Heartbeat, v1::SessionEvent> {
 public:
  Attendance(GrpcControlChannel& channel, Observer& observer)
      : channel_(channel), observer_(observer) {}

  grpc::ClientContext& context() { return context_; }

  void Start() {
    channel_.stub_->async()->Attend(&context_, this);
    AddHold();
    StartRead(&event_);
    StartCall();
  }

  void Send(const v1::Heartbeat& heartbeat) {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    if (writing_) {
      waiting_ = heartbeat;
      return;
    }
    Write(heartbeat);
  }

 private:
  void OnReadDone(bool ok) override {
    if (ok) {
      observer_.OnEvent(event_);
      StartRead(&event_);
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    RemoveHold();
  }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    if (!ok || ended_ || !waiting_) return;
    const v1::Heartbeat next = *std::exchange(waiting_, std::nullopt);
    Write(next);
  }

  void OnDone(const grpc::Status& status) override {
    observer_.OnAttendClosed(FromGrpc(status));
    channel_.Forget(context_);
    channel_.End();
  }

  void Write(const v1::Heartbeat& heartbeat) {
    writing_ = true;
    written_ = heartbeat;
    StartWrite(&written_);
  }

  GrpcControlChannel& channel_;
  Observer& observer_;
  grpc::ClientContext context_;
  v1::SessionEvent event_;
  std::mutex mutex_;
  bool ended_ = false;
  bool writing_ = false;
  v1::Heartbeat written_;
  std::optional<v1::Heartbeat> waiting_;
};

GrpcControlChannel::GrpcControlChannel(const std::shared_ptr<grpc::Channel>& channel)
    : stub_(v1::Session::NewStub(channel)) {}

GrpcControlChannel::~GrpcControlChannel() { Close(); }

bool GrpcControlChannel::Begin(grpc::ClientContext& context) {
  const std::lock_guard lock(mutex_);
  if (closed_) return false;
  calls_.insert(&context);
  ++busy_;
  return true;
}

void GrpcControlChannel::Forget(grpc::ClientContext& context) {
  const std::lock_guard lock(mutex_);
  calls_.erase(&context);
}

void GrpcControlChannel::End() {
  const std::lock_guard lock(mutex_);
  // Under the lock: whoever waits may destroy this object once it sees that nothing is left.
  if (--busy_ == 0) idle_.notify_all();
}

void GrpcControlChannel::Close() {
  std::unique_lock lock(mutex_);
  closed_ = true;
  for (grpc::ClientContext* context : calls_) context->TryCancel();
  idle_.wait(lock, [this] { return busy_ == 0; });
}

template <typename Request, typename Response, typename Method>
void GrpcControlChannel::Call(Method method, const Request& request, DurationNs timeout,
                              Done<Response> done) {
  struct State {
    grpc::ClientContext context;
    Request request;
    Response response;
    Done<Response> done;
  };
  auto owned = std::make_unique<State>();
  State* const state = owned.get();
  state->request = request;
  state->done = std::move(done);
  if (timeout > 0)
    state->context.set_deadline(std::chrono::system_clock::now() +
                                std::chrono::nanoseconds(timeout));
  if (!Begin(state->context)) {
    state->done(absl::CancelledError("the control channel is closed"));
    return;
  }
  (void)owned.release();  // to the callback, which always comes
  method(stub_->async(), &state->context, &state->request, &state->response,
         [this, state](const grpc::Status& status) {
           if (status.ok())
             state->done(std::move(state->response));
           else
             state->done(FromGrpc(status));
           // A context holds the gRPC channel. If a callback's thread drops the last hold, gRPC
           // 1.51 joins that thread with itself and aborts (grpc/grpc#32584), so it goes before
           // End(), while stub_ still has one.
           Forget(state->context);
           delete state;
           End();
         });
}

void GrpcControlChannel::Join(const v1::JoinRequest& request, DurationNs timeout,
                              Done<v1::JoinResponse> done) {
  Call([](auto* stub, auto... arguments) { stub->Join(arguments...); }, request, timeout,
       std::move(done));
}

void GrpcControlChannel::AddKeys(const v1::AddKeysRequest& request, DurationNs timeout,
                                 Done<v1::AddKeysResponse> done) {
  Call([](auto* stub, auto... arguments) { stub->AddKeys(arguments...); }, request, timeout,
       std::move(done));
}

void GrpcControlChannel::OpenLanes(const v1::OpenLanesRequest& request, DurationNs timeout,
                                   Done<v1::OpenLanesResponse> done) {
  Call([](auto* stub, auto... arguments) { stub->OpenLanes(arguments...); }, request, timeout,
       std::move(done));
}

void GrpcControlChannel::Barrier(const v1::BarrierRequest& request, DurationNs timeout,
                                 Done<v1::BarrierResponse> done) {
  Call([](auto* stub, auto... arguments) { stub->Barrier(arguments...); }, request, timeout,
       std::move(done));
}

void GrpcControlChannel::Leave(const v1::LeaveRequest& request, DurationNs timeout,
                               Done<v1::LeaveResponse> done) {
  Call([](auto* stub, auto... arguments) { stub->Leave(arguments...); }, request, timeout,
       std::move(done));
}

void GrpcControlChannel::Attend(Observer& observer) {
  PHUB_CHECK(attendance_ == nullptr);
  attendance_ = std::make_unique<Attendance>(*this, observer);
  if (Begin(attendance_->context()))
    attendance_->Start();
  else
    observer.OnAttendClosed(absl::CancelledError("the control channel is closed"));
}

void GrpcControlChannel::SendHeartbeat(const v1::Heartbeat& heartbeat) {
  if (attendance_ != nullptr) attendance_->Send(heartbeat);
}

}  // namespace phub::client
