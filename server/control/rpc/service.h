// What the gRPC services share: the way of a call to Control (and back), through Access.
// grpc_service.h makes services of handlers. Callback API: no thread waits. For the services' own
// files only.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/service_type.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "common/base/work_thread.h"
#include "server/control/ports/control_thread.h"
#include "server/control/rpc/access.h"
#include "server/control/rpc/attend_stream.h"
#include "server/tenant/tenant_admin.h"

namespace phub::server {

class Prober;
class RackRelay;

// Calls that Control has not answered yet, so that shutting down can. Under ControlThread's lock;
// shared with the answers that Control holds, which may come after the server is gone.
class OpenCalls : public std::enable_shared_from_this<OpenCalls> {
 public:
  explicit OpenCalls(ControlThread& thread) : thread_(thread) {}

  // What Control is to call. The response and the reactor live until the reactor is finished.
  template <typename Response>
  Answer<Response> Open(grpc::ServerUnaryReactor* reactor, Response* response) {
    const std::uint64_t id = ++opened_;
    reactors_[id] = reactor;
    return [self = shared_from_this(), id, response](const absl::Status& status,
                                                     const Response& given) {
      if (!self->reactors_.contains(id)) return;  // finished when the server shut down
      *response = given;
      self->Finish(id, status);
    };
  }
  void FinishAll(const absl::Status& status) {
    while (!reactors_.empty()) Finish(reactors_.begin()->first, status);
  }

 private:
  void Finish(std::uint64_t id, const absl::Status& status) {
    grpc::ServerUnaryReactor* const reactor = reactors_[id];
    reactors_.erase(id);
    thread_.Defer([reactor, status = ToGrpcStatus(status)] { reactor->Finish(status); });
  }

  ControlThread& thread_;
  std::uint64_t opened_ = 0;
  std::map<std::uint64_t, grpc::ServerUnaryReactor*> reactors_;
};

// So many entries of the audit log at once and one a second: a flood of them is to fill no disk.
struct AuditBudget {
  TimeNs at = 0;
  int left = 0;
  bool Take(TimeNs now);  // false: it is used up
};

// What all services share, under ControlThread's lock but for what is constant.
struct Shared {
  Shared(ControlThread& given, Access& door, TenantAdmin* tenant_admin, WorkThread* worker,
         RackRelay* racks)
      : thread(given),
        access(door),
        admin(tenant_admin),
        state_thread(worker),
        relay(racks),
        calls(std::make_shared<OpenCalls>(given)) {}

  ControlThread& thread;
  Access& access;
  TenantAdmin* const admin;        // null: no administrative changes are recorded (tests)
  WorkThread* const state_thread;  // where `admin` works
  RackRelay* const relay;          // null: there are no other racks
  const std::shared_ptr<OpenCalls> calls;
  // How to end each stream that is open.
  std::map<const void*, std::function<void(const absl::Status&)>> streams;
  // Once draining began or ended for the administrator; without the lock.
  std::function<void(bool serving)> set_serving;
  bool closed = false;
  AuditBudget audited_refusals;
  std::map<std::string, AuditBudget> audited_saves;  // by tenant; each has those of its own jobs

  // Under the lock. Counts a call that was refused at the door, and audits an attempt at a change
  // by somebody who is known.
  void NoteRefusal(Control& control, const Admission& admission);

  // Under the lock: a stream that has just begun.
  template <typename Stream>
  void Keep(Control& control, Stream* stream, const Admission& admission) {
    stream->on_done = [this, stream] { streams.erase(stream); };
    streams[stream] = [stream](const absl::Status& status) { stream->End(status); };
    if (!admission.status.ok()) {
      NoteRefusal(control, admission);
      stream->End(admission.status);
    } else if (closed) {
      stream->End(absl::UnavailableError("phubd is stopping"));
    }
  }
};

// Has work done where control state may be touched, and then `finish` called under the lock with
// what came out. Under the lock.
template <typename Response, typename Work, typename Finish>
void RunOnState(Shared& shared, Answer<Response> answer, Work work, Finish finish) {
  if (shared.state_thread == nullptr) {
    return answer(absl::UnimplementedError("this daemon keeps no control state"), {});
  }
  const bool posted = shared.state_thread->Post(
      [&shared, answer, work = std::move(work), finish = std::move(finish)] {
        const auto result = work();
        shared.thread.Run([&](Control& control) { finish(control, result, answer); });
      });
  if (!posted) {
    answer(absl::UnavailableError("too many changes of control state wait; try again"), {});
  }
}

// An administrative change that is not control state's own: recorded, and then made. What cannot be
// recorded is not done.
template <typename Request, typename Response, typename Function>
void RunAudited(Shared& shared, Control& control, AuditNote note, const Request& request,
                Answer<Response> answer, Function function) {
  if (shared.admin == nullptr) return function(control, request, std::move(answer));
  RunOnState(
      shared, std::move(answer),
      [&shared, note = std::move(note)] { return shared.admin->Audit(note); },
      [request, function = std::move(function)](Control& under_lock, const absl::Status& recorded,
                                                const Answer<Response>& then) {
        if (!recorded.ok()) return then(recorded, {});
        function(under_lock, request, then);
      });
}

std::unique_ptr<grpc::Service> MakeSessionService(Shared& shared);
std::unique_ptr<grpc::Service> MakeAdminService(Shared& shared);
std::unique_ptr<grpc::Service> MakeTenantsService(Shared& shared);
std::unique_ptr<grpc::Service> MakePeerService(Shared& shared);
// prober: null if there are no other racks.
std::unique_ptr<grpc::Service> MakeProbeService(Shared& shared, Prober* prober);

}  // namespace phub::server
