// phub.v1.Admin: queries and commands of operators, and of tenants about their own jobs.
#include <fmt/format.h>

#include "common/base/clock.h"
#include "common/base/units.h"
#include "phub/v1/admin.grpc.pb.h"
#include "server/control/admin/admin.h"
#include "server/control/admin/draining.h"
#include "server/control/admin/metrics.h"
#include "server/control/admin/tenants.h"
#include "server/control/checkpoint/snapshots.h"
#include "server/control/checkpoint/versions.h"
#include "server/control/racks/rack_messages.h"
#include "server/control/rpc/grpc_service.h"
#include "server/control/rpc/rack_relay.h"
#include "server/control/rpc/snapshot_relay.h"
#include "server/control/rpc/snapshot_stream.h"

namespace phub::server {
namespace {

bool IsTenant(const Caller& caller) { return !caller.open && caller.role == Role::kTenant; }

// Hides the usage of other tenants: the daemon looks as large as the tenant's quota.
void Narrow(Control& control, const std::string& tenant, v1::ServerInfo& info) {
  const Usage usage = control.tenants().UsageOf(tenant);
  info.set_memory_bytes(usage.memory_bytes);
  info.set_memory_bytes_max(control.tenants().MemoryLimitOf(tenant));
  info.set_job_count(static_cast<std::uint32_t>(usage.jobs));
}

AuditNote NoteOf(const Caller& caller, const char* action, const std::string& subject,
                 const std::string& detail) {
  return {caller.name, caller.peer, action, subject, detail, "asked"};
}

class AdminHandlers {
 public:
  explicit AdminHandlers(Shared& shared) : shared_(shared) {}

  void Handle(RpcCall<rpc::GetJobVersions>& call) {
    const auto pass_on = [](auto& stub, auto... passed) { stub.GetJobVersions(passed...); };
    if (IsPassedOn(call, pass_on)) return;
    call.control.versions().GetJobVersions(call.request, std::move(call.answer));
  }

  void Handle(RpcCall<rpc::BeginSnapshot>& call) {
    const auto pass_on = [](auto& stub, auto... passed) { stub.BeginSnapshot(passed...); };
    if (IsPassedOn(call, pass_on)) return;
    call.control.snapshots().BeginSnapshot(call.request, std::move(call.answer));
  }

  void Handle(RpcCall<rpc::GetServer>& call) {
    call.control.admin().GetServer(call.request,
                                   [&](const absl::Status& status, const v1::ServerInfo& info) {
                                     if (!IsTenant(call.caller)) return call.answer(status, info);
                                     v1::ServerInfo narrowed = info;
                                     Narrow(call.control, call.caller.tenant, narrowed);
                                     call.answer(status, narrowed);
                                   });
  }

  void Handle(RpcCall<rpc::GetStats>& call) {
    const std::string only = IsTenant(call.caller) ? call.caller.tenant : std::string();
    call.control.metrics().GetStats(call.request, std::move(call.answer), only);
  }

  void Handle(RpcCall<rpc::EvictJob>& call) {
    const v1::EvictJobRequest& request = call.request;
    // If no such job runs, there is nothing to record. Repeated calls must not fill the disk.
    if (!call.control.admin().IsRunning(request.tenant(), request.job()))
      return call.control.draining().EvictJob(request, std::move(call.answer));
    const std::string& tenant = request.tenant().empty() ? kDefaultTenant : request.tenant();
    RunAudited(shared_, call.control, call.caller,
               NoteOf(call.caller, "job.evict", fmt::format("{}/{}", tenant, request.job()),
                      request.reason()),
               request, std::move(call.answer),
               [](Control& under_lock, const v1::EvictJobRequest& asked, auto then) {
                 under_lock.draining().EvictJob(asked, std::move(then));
               });
  }

  void Handle(RpcCall<rpc::DrainServer>& call) {
    const std::int64_t deadline = call.request.deadline_ns();
    const std::string detail = deadline > 0 ? "deadline " + HumanDuration(deadline) : "";
    RunAudited(shared_, call.control, call.caller, NoteOf(call.caller, "server.drain", "", detail),
               call.request, Tell(std::move(call.answer), /*serving=*/false),
               [](Control& under_lock, const v1::DrainServerRequest& asked, auto then) {
                 under_lock.draining().DrainServer(asked, std::move(then));
               });
  }
  void Handle(RpcCall<rpc::UndrainServer>& call) {
    RunAudited(shared_, call.control, call.caller, NoteOf(call.caller, "server.undrain", "", ""),
               call.request, Tell(std::move(call.answer), /*serving=*/true),
               [](Control& under_lock, const v1::UndrainServerRequest& asked, auto then) {
                 under_lock.draining().UndrainServer(asked, std::move(then));
               });
  }

  void Handle(RpcCall<rpc::ReportSavedState>& call) {
    Control& control = call.control;
    const v1::ReportSavedStateRequest& request = call.request;
    const auto pass_on = [](auto& stub, auto... passed) { stub.ReportSavedState(passed...); };
    if (IsPassedOn(call, pass_on)) return;
    const auto iteration = control.snapshots().IterationReadOut(request);
    // There is nothing to record. Each snapshot is recorded once, even if it is reported
    // repeatedly.
    if (!iteration.ok())
      return control.snapshots().ReportSavedState(request, std::move(call.answer));
    const std::string& tenant = request.tenant().empty() ? kDefaultTenant : request.tenant();
    RunAudited(shared_, control, call.caller,
               NoteOf(call.caller, "job.save", fmt::format("{}/{}", tenant, request.job()),
                      fmt::format("iteration {} in {} on {}", *iteration, request.directory(),
                                  request.host())),
               request, std::move(call.answer),
               [](Control& under_lock, const v1::ReportSavedStateRequest& asked, auto then) {
                 under_lock.snapshots().ReportSavedState(asked, std::move(then));
               });
  }

  grpc::ServerWriteReactor<v1::SnapshotPart>* Open(rpc::ReadSnapshot,
                                                   grpc::CallbackServerContext* context,
                                                   const v1::ReadSnapshotRequest& request,
                                                   const ParseResult& parsed) {
    Admission admission = shared_.access.Admit(*context, rpc::ReadSnapshot::kMethod);
    admission.Add(parsed);
    // Both delete themselves in OnDone.
    if (const std::optional<RackIndex> from = RackOf(request)) {
      v1::ReadSnapshotRequest scoped = request;
      if (IsTenant(admission.caller)) scoped.set_tenant(admission.caller.tenant);
      auto* const relay = new SnapshotRelay(shared_.thread, *shared_.relay, *from, scoped);
      shared_.thread.Run([&](Control& control) {
        shared_.Keep(control, relay, admission);
        if (!shared_.closed && admission.status.ok()) relay->Begin();
      });
      return relay;
    }
    auto* const stream = new SnapshotStream(shared_.thread, request);
    shared_.thread.Run([&](Control& control) {
      shared_.Keep(control, stream, admission);
      if (shared_.closed || !admission.status.ok()) return;
      const absl::Status status = CheckSnapshot(control, admission.caller, request);
      status.ok() ? stream->Begin(control) : stream->End(status);
    });
    return stream;
  }

 private:
  // Forwards a call that is for another rack, or answers it with an error if it is for none. False:
  // the call is for this daemon.
  template <typename Rpc, typename PassOn>
  bool IsPassedOn(RpcCall<Rpc>& call, PassOn pass_on) {
    absl::StatusOr<std::optional<RackIndex>> rack = std::nullopt;
    const v1::RackChoice& choice = call.request.rack();
    if (absl::Status may = CheckPassedOn(call.control, call.caller, choice); !may.ok()) rack = may;
    if (rack.ok() && call.request.has_rack()) rack = call.control.rack_messages().RackToAsk(choice);
    if (rack.ok() && !rack->has_value()) return false;
    if (rack.ok() && shared_.relay == nullptr)
      rack = absl::UnimplementedError("this daemon has no other racks");
    if (rack.ok()) {
      shared_.relay->PassOn(**rack, call.request, call.answer, std::move(pass_on));
    } else {
      call.answer(rack.status(), {});
    }
    return true;
  }
  // The rack whose snapshot is read; nullopt: this daemon answers, possibly with an error.
  std::optional<RackIndex> RackOf(const v1::ReadSnapshotRequest& request) {
    if (!request.has_rack() || shared_.relay == nullptr) return std::nullopt;
    const auto rack = shared_.thread.Run(
        [&](Control& control) { return control.rack_messages().RackToAsk(request.rack()); });
    return rack.ok() ? *rack : std::nullopt;
  }
  // Updates the health service before the answer is sent, so that a client never sees a stale
  // state.
  Answer<v1::ServerInfo> Tell(Answer<v1::ServerInfo> answer, bool serving) {
    return [this, serving, answer = std::move(answer)](const absl::Status& status,
                                                       const v1::ServerInfo& info) {
      if (!status.ok()) return answer(status, info);
      shared_.thread.Defer([this, serving] { shared_.set_serving(serving); });
      v1::ServerInfo warned = info;
      if (shared_.admin != nullptr) warned.set_warning(shared_.admin->Warning());
      answer(status, warned);
    };
  }

  Shared& shared_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAdminService(Shared& shared) {
  return std::make_unique<GrpcService<AdminHandlers, rpc::Admin>>(shared);
}

}  // namespace phub::server
