#include "client/session/grpc_control_channel.h"

#include <grpcpp/generic/generic_stub.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>

#include "common/base/check.h"
#include "common/rpc/outage.h"
#include "phub/v1/session.grpc.pb.h"

namespace phub::client {
namespace {

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  // The codes of gRPC and Abseil are the same numbers.
  return rpc::StatusOfCall(
      {static_cast<absl::StatusCode>(status.error_code()), status.error_message()},
      status.error_details());
}

std::chrono::system_clock::time_point DeadlineIn(DurationNs timeout) {
  return std::chrono::system_clock::now() + std::chrono::nanoseconds(timeout);
}

}  // namespace

struct GrpcControlChannel::Connection {
  explicit Connection(std::shared_ptr<grpc::Channel> to)
      : channel(std::move(to)), stub(v1::Session::NewStub(channel)) {}

  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<v1::Session::Stub> stub;  // for streams
  std::set<grpc::ClientContext*> calls;           // calls and streams that Drop() cancels
  std::size_t busy = 0;                           // calls whose callback has not returned
};

// The Attend stream. Writes are started outside the reactor's callbacks, so it holds the stream
// open until reading has ended. Deletes itself at the end.
class GrpcControlChannel::Attendance final
    : public grpc::ClientBidiReactor<v1::Heartbeat, v1::SessionEvent> {
 public:
  Attendance(GrpcControlChannel& channel, Observer& observer)
      : channel_(channel), observer_(observer) {}

  grpc::ClientContext& context() { return *context_; }

  void Start(Connection& connection) {
    // Excludes Send(), and OnReadDone(), which must run before OnDone().
    const std::lock_guard lock(mutex_);
    connection_ = &connection;
    connection.stub->async()->Attend(context_.get(), this);
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
    {
      const std::lock_guard lock(channel_.mutex_);
      if (channel_.attendance_ == this) channel_.attendance_ = nullptr;
    }
    observer_.OnAttendClosed(FromGrpc(status));
    // The context holds the gRPC channel; destroy it before End(), as in CallUnary().
    channel_.Forget(*connection_, *context_);
    context_.reset();
    GrpcControlChannel& channel = channel_;
    Connection& connection = *connection_;
    delete this;
    channel.End(connection);
  }

  void Write(const v1::Heartbeat& heartbeat) {
    writing_ = true;
    written_ = heartbeat;
    StartWrite(&written_);
  }

  GrpcControlChannel& channel_;
  Observer& observer_;
  Connection* connection_ = nullptr;
  std::unique_ptr<grpc::ClientContext> context_ = std::make_unique<grpc::ClientContext>();
  v1::SessionEvent event_;
  std::mutex mutex_;
  bool ended_ = false;
  bool writing_ = false;
  v1::Heartbeat written_;
  std::optional<v1::Heartbeat> waiting_;
};

// The LoadState stream with its single message. Deletes itself at the end.
class GrpcControlChannel::Loading final : public grpc::ClientWriteReactor<v1::LoadStateRequest> {
 public:
  Loading(GrpcControlChannel& channel, const v1::LoadStateRequest& request, DurationNs timeout,
          Done<v1::LoadStateResponse> done)
      : channel_(channel), request_(request), done_(std::move(done)) {
    if (timeout > 0) context_->set_deadline(DeadlineIn(timeout));
  }

  grpc::ClientContext& context() { return *context_; }

  void Start(Connection& connection) {
    connection_ = &connection;
    connection.stub->async()->LoadState(context_.get(), &response_, this);
    StartWriteLast(&request_, grpc::WriteOptions());
    StartCall();
  }
  void Refuse() { done_(absl::CancelledError("the control channel is closed")); }

 private:
  void OnDone(const grpc::Status& status) override {
    if (status.ok())
      done_(std::move(response_));
    else
      done_(FromGrpc(status));
    channel_.Forget(*connection_, *context_);
    context_.reset();
    GrpcControlChannel& channel = channel_;
    Connection& connection = *connection_;
    delete this;
    channel.End(connection);
  }

  GrpcControlChannel& channel_;
  const v1::LoadStateRequest request_;
  const Done<v1::LoadStateResponse> done_;
  Connection* connection_ = nullptr;
  std::unique_ptr<grpc::ClientContext> context_ = std::make_unique<grpc::ClientContext>();
  v1::LoadStateResponse response_;
};

GrpcControlChannel::GrpcControlChannel(Connect connect)
    : connect_(std::move(connect)), connection_(std::make_unique<Connection>(connect_())) {}

GrpcControlChannel::~GrpcControlChannel() { Close(); }

GrpcControlChannel::Connection* GrpcControlChannel::Begin(grpc::ClientContext& context) {
  const std::lock_guard lock(mutex_);
  if (closed_) return nullptr;
  connection_->calls.insert(&context);
  ++connection_->busy;
  return connection_.get();
}

void GrpcControlChannel::Forget(Connection& connection, grpc::ClientContext& context) {
  const std::lock_guard lock(mutex_);
  connection.calls.erase(&context);
}

void GrpcControlChannel::End(Connection& connection) {
  const std::lock_guard lock(mutex_);
  // With the lock: a waiting thread may destroy this object as soon as it sees `busy` == 0.
  if (--connection.busy == 0) idle_.notify_all();
}

void GrpcControlChannel::Drop(std::unique_ptr<Connection> connection) {
  std::unique_lock lock(mutex_);
  for (grpc::ClientContext* context : connection->calls) context->TryCancel();
  idle_.wait(lock, [&] { return connection->busy == 0; });
}

void GrpcControlChannel::Reconnect() {
  std::unique_ptr<Connection> replaced = std::make_unique<Connection>(connect_());
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    std::swap(connection_, replaced);
  }
  Drop(std::move(replaced));
}

void GrpcControlChannel::Close() {
  std::unique_ptr<Connection> last;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    last = std::move(connection_);
  }
  if (last != nullptr) Drop(std::move(last));
}

void GrpcControlChannel::Load(const v1::LoadStateRequest& request, DurationNs timeout,
                              Done<v1::LoadStateResponse> done) {
  auto loading = std::make_unique<Loading>(*this, request, timeout, std::move(done));
  Connection* const connection = Begin(loading->context());
  if (connection == nullptr) return loading->Refuse();
  loading.release()->Start(*connection);  // deletes itself
}

template <typename Rpc>
void GrpcControlChannel::Carry(const typename Rpc::Request& request, DurationNs timeout,
                               Done<typename Rpc::Response> done) {
  if constexpr (std::is_same_v<Rpc, rpc::LoadState>) {
    Load(request, timeout, std::move(done));
  } else {
    CallUnary<Rpc>(request, timeout, std::move(done));
  }
}

template <typename Rpc>
void GrpcControlChannel::CallUnary(const typename Rpc::Request& request, DurationNs timeout,
                                   Done<typename Rpc::Response> done) {
  static_assert(Rpc::kKind == rpc::Kind::kUnary);
  using Request = typename Rpc::Request;
  using Response = typename Rpc::Response;
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
  if (timeout > 0) state->context.set_deadline(DeadlineIn(timeout));
  Connection* const connection = Begin(state->context);
  if (connection == nullptr) {
    state->done(absl::CancelledError("the control channel is closed"));
    return;
  }
  (void)owned.release();  // the callback owns it, and always runs
  grpc::TemplatedGenericStub<Request, Response>(connection->channel)
      .UnaryCall(&state->context, Rpc::kPath, grpc::StubOptions(), &state->request,
                 &state->response, [this, connection, state](const grpc::Status& status) {
                   if (status.ok())
                     state->done(std::move(state->response));
                   else
                     state->done(FromGrpc(status));
                   // A context holds a reference to the gRPC channel. If a callback's thread drops
                   // the last one, gRPC 1.51 joins that thread with itself and aborts
                   // (grpc/grpc#32584). So destroy the context before End(), while `connection`
                   // still has a reference.
                   Forget(*connection, state->context);
                   delete state;
                   End(*connection);
                 });
}

void GrpcControlChannel::Attend(Observer& observer) {
  auto attendance = std::make_unique<Attendance>(*this, observer);
  Connection* const connection = Begin(attendance->context());
  if (connection == nullptr)
    return observer.OnAttendClosed(absl::CancelledError("the control channel is closed"));
  // The caller decides when to try again. Otherwise gRPC would refuse while its own pause lasts.
  grpc::experimental::ChannelResetConnectionBackoff(connection->channel.get());
  Attendance* const started = attendance.release();  // deletes itself
  {
    // Before Start(): the stream may end immediately.
    const std::lock_guard lock(mutex_);
    PHUB_CHECK(attendance_ == nullptr);
    attendance_ = started;
  }
  started->Start(*connection);
}

void GrpcControlChannel::SendHeartbeat(const v1::Heartbeat& heartbeat) {
  const std::lock_guard lock(mutex_);
  if (attendance_ != nullptr) attendance_->Send(heartbeat);
}

}  // namespace phub::client
