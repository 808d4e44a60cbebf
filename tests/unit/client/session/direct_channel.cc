#include "tests/unit/client/session/direct_channel.h"

#include <functional>
#include <utility>

#include "common/rpc/outage.h"
#include "tests/unit/client/session/fake_daemon.h"

namespace phub::client {

namespace {

using Cancelled = std::function<bool()>;

// Calls that the fake daemon does not support.
template <typename Rpc>
absl::Status Ask(Rpc, FakeDaemon&, const typename Rpc::Request&, typename Rpc::Response&,
                 const Cancelled&) {
  return absl::UnimplementedError("not of the fake daemon");
}
absl::Status Ask(rpc::GetRack, FakeDaemon& daemon, const v1::GetRackRequest& request,
                 v1::Rack& response, const Cancelled&) {
  response.set_waits_for(daemon.WhyJoinWaits(request.job()));
  return daemon.HandleGetRack(response);
}
absl::Status Ask(rpc::Join, FakeDaemon& daemon, const v1::JoinRequest& request,
                 v1::JoinResponse& response, const Cancelled&) {
  daemon.AwaitQuestion();
  return daemon.HandleJoin(request, response);
}
absl::Status Ask(rpc::Commit, FakeDaemon& daemon, const v1::CommitRequest&, v1::CommitResponse&,
                 const Cancelled&) {
  return daemon.HandleCommit();
}
absl::Status Ask(rpc::AddKeys, FakeDaemon& daemon, const v1::AddKeysRequest& request,
                 v1::AddKeysResponse& response, const Cancelled&) {
  return daemon.HandleAddKeys(request, response);
}
absl::Status Ask(rpc::RemoveKeys, FakeDaemon& daemon, const v1::RemoveKeysRequest& request,
                 v1::RemoveKeysResponse&, const Cancelled& cancelled) {
  return daemon.HandleRemoveKeys(request, cancelled);
}
absl::Status Ask(rpc::OpenLanes, FakeDaemon& daemon, const v1::OpenLanesRequest& request,
                 v1::OpenLanesResponse& response, const Cancelled&) {
  return daemon.HandleOpenLanes(request, response);
}
absl::Status Ask(rpc::Barrier, FakeDaemon& daemon, const v1::BarrierRequest& request,
                 v1::BarrierResponse&, const Cancelled& cancelled) {
  return daemon.HandleBarrier(request, cancelled);
}
absl::Status Ask(rpc::Leave, FakeDaemon& daemon, const v1::LeaveRequest& request,
                 v1::LeaveResponse&, const Cancelled&) {
  return daemon.HandleLeave(request);
}
absl::Status Ask(rpc::GetVersions, FakeDaemon& daemon, const v1::GetVersionsRequest&,
                 v1::GetVersionsResponse& response, const Cancelled&) {
  return daemon.HandleGetVersions(response);
}
absl::Status Ask(rpc::LoadState, FakeDaemon& daemon, const v1::LoadStateRequest& request,
                 v1::LoadStateResponse&, const Cancelled&) {
  return daemon.HandleLoadState(request);
}
absl::Status Ask(rpc::GetLoadedState, FakeDaemon& daemon, const v1::GetLoadedStateRequest&,
                 v1::LoadedState& response, const Cancelled&) {
  return daemon.HandleGetLoadedState(response);
}
absl::Status Ask(rpc::ReportDump, FakeDaemon& daemon, const v1::ReportDumpRequest& request,
                 v1::ReportDumpResponse&, const Cancelled&) {
  return daemon.HandleReportDump(request);
}
// No round waits.
absl::Status Ask(rpc::ListStalls, FakeDaemon&, const v1::ListStallsRequest&,
                 v1::ListStallsResponse&, const Cancelled&) {
  return absl::OkStatus();
}

}  // namespace

DirectChannel::DirectChannel(FakeDaemon& daemon) : daemon_(daemon) {}

template <typename Rpc>
void DirectChannel::Carry(const typename Rpc::Request& request, DurationNs,
                          Done<typename Rpc::Response> done) {
  const std::lock_guard lock(mutex_);
  if (closed_) return done(absl::CancelledError("closed"));
  calls_.emplace_back([this, request, done = std::move(done), generation = generation_.load()] {
    typename Rpc::Response response;
    absl::Status status = absl::UnavailableError("Connection refused");
    if (!daemon_.calls_hidden()) {
      status = Ask(Rpc(), daemon_, request, response,
                   [&] { return closed_.load() || generation_.load() != generation; });
      if (daemon_.LosesAnswer()) status = absl::UnavailableError("Socket closed");
    }
    if (status.ok())
      done(std::move(response));
    else  // The daemon does not answer CANCELLED itself.
      done(rpc::StatusOfCall(status, absl::IsCancelled(status) ? "" : "answered"));
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
