#include "tests/unit/client/session/direct_channel.h"

#include <utility>

#include "tests/unit/client/session/fake_daemon.h"

namespace phub::client {

template <typename Response, typename Handler>
void DirectChannel::Call(Done<Response> done, Handler handler) {
  const std::lock_guard lock(mutex_);
  if (closed_) return done(absl::CancelledError("closed"));
  calls_.emplace_back([done = std::move(done), handler = std::move(handler)] {
    Response response;
    const absl::Status status = handler(response);
    if (status.ok())
      done(std::move(response));
    else
      done(status);
  });
}

void DirectChannel::GetRack(const v1::GetRackRequest&, DurationNs, Done<v1::Rack> done) {
  Call<v1::Rack>(std::move(done),
                 [this](v1::Rack& response) { return daemon_.HandleGetRack(response); });
}
void DirectChannel::Join(const v1::JoinRequest& request, DurationNs,
                         Done<v1::JoinResponse> done) {
  Call<v1::JoinResponse>(std::move(done), [this, request](v1::JoinResponse& response) {
    return daemon_.HandleJoin(request, response);
  });
}
void DirectChannel::Commit(const v1::CommitRequest&, DurationNs, Done<v1::CommitResponse> done) {
  Call<v1::CommitResponse>(std::move(done),
                           [this](v1::CommitResponse&) { return daemon_.HandleCommit(); });
}
void DirectChannel::AddKeys(const v1::AddKeysRequest& request, DurationNs,
                            Done<v1::AddKeysResponse> done) {
  Call<v1::AddKeysResponse>(std::move(done), [this, request](v1::AddKeysResponse& response) {
    return daemon_.HandleAddKeys(request, response);
  });
}
void DirectChannel::OpenLanes(const v1::OpenLanesRequest& request, DurationNs,
                              Done<v1::OpenLanesResponse> done) {
  Call<v1::OpenLanesResponse>(std::move(done), [this, request](v1::OpenLanesResponse& response) {
    return daemon_.HandleOpenLanes(request, response);
  });
}
void DirectChannel::Barrier(const v1::BarrierRequest& request, DurationNs,
                            Done<v1::BarrierResponse> done) {
  Call<v1::BarrierResponse>(
      std::move(done), [this, request, generation = generation_.load()](v1::BarrierResponse&) {
        return daemon_.HandleBarrier(
            request, [&] { return closed_.load() || generation_.load() != generation; });
      });
}
void DirectChannel::Leave(const v1::LeaveRequest& request, DurationNs,
                          Done<v1::LeaveResponse> done) {
  Call<v1::LeaveResponse>(std::move(done), [this, request](v1::LeaveResponse&) {
    return daemon_.HandleLeave(request);
  });
}
void DirectChannel::GetVersions(const v1::GetVersionsRequest&, DurationNs,
                                Done<v1::GetVersionsResponse> done) {
  Call<v1::GetVersionsResponse>(std::move(done), [this](v1::GetVersionsResponse& response) {
    return daemon_.HandleGetVersions(response);
  });
}
void DirectChannel::LoadState(const v1::LoadStateRequest& request, DurationNs,
                              Done<v1::LoadStateResponse> done) {
  Call<v1::LoadStateResponse>(std::move(done), [this, request](v1::LoadStateResponse&) {
    return daemon_.HandleLoadState(request);
  });
}
void DirectChannel::GetLoadedState(const v1::GetLoadedStateRequest&, DurationNs,
                                   Done<v1::LoadedState> done) {
  Call<v1::LoadedState>(std::move(done), [this](v1::LoadedState& response) {
    return daemon_.HandleGetLoadedState(response);
  });
}

void DirectChannel::Attend(Observer& observer) {
  const absl::Status opened = daemon_.StreamOpened(
      [&observer](const v1::SessionEvent& event) { observer.OnEvent(event); },
      [&observer](const absl::Status& status) { observer.OnAttendClosed(status); });
  if (!opened.ok()) observer.OnAttendClosed(opened);
}

void DirectChannel::SendHeartbeat(const v1::Heartbeat& heartbeat) {
  daemon_.HandleHeartbeat(heartbeat);
}

void DirectChannel::Reconnect() {
  ++generation_;
  daemon_.CountReconnect();
  daemon_.BreakStream(absl::CancelledError("reconnecting"));
  JoinCalls();
}

void DirectChannel::Close() {
  closed_ = true;
  daemon_.StreamClosed();
  JoinCalls();
}

void DirectChannel::JoinCalls() {
  std::vector<std::thread> calls;
  {
    const std::lock_guard lock(mutex_);
    calls.swap(calls_);
  }
  for (std::thread& call : calls) call.join();
}

}  // namespace phub::client
