// Shared by the gRPC services: the path of a call through Access to Control and back.
// grpc_service.h makes services from handlers. Uses the callback API: no thread waits. Only for the
// files of the services.
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
#include "server/control/rpc/request_turns.h"
#include "server/control/rpc/written.h"
#include "server/tenant/tenant_admin.h"

namespace phub::server {

class Prober;
class RackRelay;

// A unary call. Deletes itself.
class CallReactor final : public grpc::ServerUnaryReactor {
 public:
  void OnDone() override { delete this; }
  RequestTurns::Token open;    // for the call
  RequestTurns::Token charge;  // for the answer, until the caller has it
};

// Calls that Control has not answered yet, so that a shutdown can answer them. Under
// ControlThread's lock. Shared with the answers that Control holds, which may be given after the
// server is destroyed.
class OpenCalls : public std::enable_shared_from_this<OpenCalls> {
 public:
  OpenCalls(ControlThread& thread, std::uint64_t request_memory)
      : thread_(thread), turns_(request_memory) {}

  // Returns the answer for Control to call. The response and the reactor live until the reactor is
  // finished. The tenant pays for the answer until its caller has it.
  template <typename Response>
  Answer<Response> Open(CallReactor* reactor, Written<Response>* response,
                        const std::string& tenant) {
    const std::uint64_t id = ++opened_;
    reactors_[id] = reactor;
    return [self = shared_from_this(), id, response, tenant](const absl::Status& status,
                                                             Response given) {
      if (!status.ok()) return self->Finish(id, status);
      const auto message = std::make_shared<Response>(std::move(given));
      self->Write(id, tenant, [response, message] {
        response->Write(*message);
        return response->bytes.Length();
      });
    };
  }
  void FinishAll(const absl::Status& status) {
    while (!reactors_.empty()) Finish(reactors_.begin()->first, status);
  }
  RequestTurns& turns() { return turns_; }

 private:
  // These do nothing if the server's shutdown has finished the call.
  void Finish(std::uint64_t id, const absl::Status& status);
  // `write` returns the number of bytes, and runs without the lock.
  void Write(std::uint64_t id, const std::string& tenant, std::function<std::size_t()> write);

  ControlThread& thread_;
  RequestTurns turns_;
  std::uint64_t opened_ = 0;
  std::map<std::uint64_t, CallReactor*> reactors_;
};

// State that all services share. Constant members need no lock, all others are under
// ControlThread's lock.
struct Shared {
  Shared(ControlThread& given, Access& door, TenantAdmin* tenant_admin, WorkThread* worker,
         RackRelay* racks, std::uint64_t request_memory)
      : thread(given),
        access(door),
        admin(tenant_admin),
        state_thread(worker),
        relay(racks),
        calls(std::make_shared<OpenCalls>(given, request_memory)) {}

  ControlThread& thread;
  Access& access;
  TenantAdmin* const admin;        // null: administrative changes are not recorded (tests)
  WorkThread* const state_thread;  // runs the work of `admin`
  RackRelay* const relay;          // null: there are no other racks
  const std::shared_ptr<OpenCalls> calls;
  // Functions that end the open streams.
  std::map<const void*, std::function<void(const absl::Status&)>> streams;
  // Called without the lock once an administrator has begun or ended draining.
  std::function<void(bool serving)> set_serving;
  bool closed = false;

  // Under the lock. Counts a refused call. If an identified caller attempted a change, also records
  // it in the audit log.
  void NoteRefusal(Control& control, const Admission& admission);

  // Any thread. Charges a tenant for what its call or connection costs, until the token ends.
  // Callers of other roles are not charged, so a tenant cannot keep them out.
  absl::StatusOr<RequestTurns::Token> Charge(const Caller& caller, std::uint64_t bytes) const;
  // The same for a call. A tenant that has too many is refused.
  RequestTurns::Token ChargeCall(Admission& admission) const;

  // Under the lock: registers a new stream, or ends it if it was refused.
  template <typename Stream>
  void Keep(Control& control, Stream* stream, Admission& admission) {
    stream->charge = ChargeCall(admission);
    stream->on_done = [this, stream] { streams.erase(stream); };
    streams[stream] = [stream](const absl::Status& status) { stream->End(status); };
    if (!admission.status.ok()) {
      NoteRefusal(control, admission);
      stream->End(admission.status);
    } else if (closed) {
      stream->End(absl::UnavailableError("phubd is shutting down"));
    }
  }
};

// Runs `work` on the thread of the control store, then calls `finish` with its result under the
// lock. To be called under the lock.
template <typename Response, typename Work, typename Finish>
void RunOnState(Shared& shared, Answer<Response> answer, Work work, Finish finish) {
  if (shared.state_thread == nullptr) {
    return answer(absl::UnimplementedError("this daemon has no control store"), {});
  }
  const bool posted = shared.state_thread->Post(
      [&shared, answer, work = std::move(work), finish = std::move(finish)] {
        const auto result = work();
        shared.thread.Run([&](Control& control) { finish(control, result, answer); });
      });
  if (!posted) {
    answer(absl::UnavailableError(
               "too many changes of the control store are waiting; try again later"),
           {});
  }
}

// A change outside the control store: it is recorded first. Changes by tenants beyond their budget
// of entries are made without an entry, and counted.
template <typename Request, typename Response, typename Function>
void RunAudited(Shared& shared, Control& control, const Caller& caller, AuditNote note,
                const Request& request, Answer<Response> answer, Function function) {
  if (shared.admin == nullptr) return function(control, request, std::move(answer));
  if (!shared.admin->MayRecord(caller, SystemClock().Now())) {
    control.counters().Add(ControlCounter::audit_suppressed);
    return function(control, request, std::move(answer));
  }
  RunOnState(
      shared, std::move(answer),
      [&shared, caller, note = std::move(note)] { return shared.admin->Audit(caller, note); },
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
std::unique_ptr<grpc::Service> MakeMembershipService(Shared& shared);
// prober: null if there are no other racks.
std::unique_ptr<grpc::Service> MakeProbeService(Shared& shared, Prober* prober);

}  // namespace phub::server
