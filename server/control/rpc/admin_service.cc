// phub.v1.Admin: what operators ask, and tenants about their own jobs.
#include <fmt/format.h>

#include "common/base/clock.h"
#include "common/base/units.h"
#include "phub/v1/admin.grpc.pb.h"
#include "server/control/admin/admin.h"
#include "server/control/admin/draining.h"
#include "server/control/admin/metrics.h"
#include "server/control/admin/stall_reports.h"
#include "server/control/admin/tenants.h"
#include "server/control/checkpoint/snapshots.h"
#include "server/control/checkpoint/versions.h"
#include "server/control/racks/rack_messages.h"
#include "server/control/rpc/rack_relay.h"
#include "server/control/rpc/snapshot_relay.h"
#include "server/control/rpc/snapshot_stream.h"
#include "server/control/rpc/unary_call.h"

namespace phub::server {
namespace {

bool IsTenant(const Caller& caller) { return !caller.open && caller.role == Role::kTenant; }

// What others hold is not a tenant's business: the daemon looks as large as the tenant's quota.
void Narrow(Control& control, const std::string& tenant, v1::ServerInfo& info) {
  const Usage usage = control.tenants().UsageOf(tenant);
  info.set_memory_bytes(usage.memory_bytes);
  info.set_memory_bytes_max(control.tenants().MemoryLimitOf(tenant));
  info.set_job_count(static_cast<std::uint32_t>(usage.jobs));
}

v1::GetStatsResponse OnlyOf(const std::string& tenant, const v1::GetStatsResponse& all) {
  v1::GetStatsResponse own;
  for (const v1::Counter& counter : all.counters()) {
    if (counter.tenant() == tenant) *own.add_counters() = counter;
  }
  return own;
}

bool Runs(Control& control, const v1::EvictJobRequest& eviction) {
  v1::GetJobRequest question;
  question.set_tenant(eviction.tenant());
  question.set_job(eviction.job());
  bool runs = false;
  control.admin().GetJob(question, [&](const absl::Status& status, const v1::JobInfo& job) {
    runs = status.ok() && job.state() == "running";
  });
  return runs;
}

AuditNote NoteOf(const Caller& caller, const char* action, const std::string& subject,
                 const std::string& detail) {
  return {caller.name, caller.peer, action, subject, detail, "asked"};
}

class AdminService final : public v1::Admin::CallbackService {
 public:
  explicit AdminService(Shared& shared) : shared_(shared) {}

  PHUB_UNARY(admin, Admin, ListJobs, ListJobsResponse)
  PHUB_UNARY(admin, Admin, GetJob, JobInfo)
  PHUB_UNARY(stall_reports, Admin, ListStalls, ListStallsResponse)

  grpc::ServerUnaryReactor* GetJobVersions(grpc::CallbackServerContext* context,
                                           const v1::GetJobVersionsRequest* request,
                                           v1::GetVersionsResponse* response) override {
    return Serve(
        shared_, context, "phub.v1.Admin/GetJobVersions", request, response,
        [this](Control& control, const Caller& caller, const v1::GetJobVersionsRequest& scoped,
               Answer<v1::GetVersionsResponse> answer) {
          const auto pass_on = [](auto& stub, auto... call) { stub.GetJobVersions(call...); };
          if (IsPassedOn(control, caller, scoped, answer, pass_on)) return;
          control.versions().GetJobVersions(scoped, std::move(answer));
        });
  }

  grpc::ServerUnaryReactor* BeginSnapshot(grpc::CallbackServerContext* context,
                                          const v1::BeginSnapshotRequest* request,
                                          v1::Snapshot* response) override {
    return Serve(shared_, context, "phub.v1.Admin/BeginSnapshot", request, response,
                 [this](Control& control, const Caller& caller,
                        const v1::BeginSnapshotRequest& scoped, Answer<v1::Snapshot> answer) {
                   const auto pass_on = [](auto& stub, auto... call) {
                     stub.BeginSnapshot(call...);
                   };
                   if (IsPassedOn(control, caller, scoped, answer, pass_on)) return;
                   control.snapshots().BeginSnapshot(scoped, std::move(answer));
                 });
  }

  grpc::ServerUnaryReactor* GetServer(grpc::CallbackServerContext* context,
                                      const v1::GetServerRequest* request,
                                      v1::ServerInfo* response) override {
    return Serve(shared_, context, "phub.v1.Admin/GetServer", request, response,
                 [](Control& control, const Caller& caller, const v1::GetServerRequest& scoped,
                    const Answer<v1::ServerInfo>& answer) {
                   control.admin().GetServer(
                       scoped, [&](const absl::Status& status, const v1::ServerInfo& info) {
                         if (!IsTenant(caller)) return answer(status, info);
                         v1::ServerInfo narrowed = info;
                         Narrow(control, caller.tenant, narrowed);
                         answer(status, narrowed);
                       });
                 });
  }

  grpc::ServerUnaryReactor* GetStats(grpc::CallbackServerContext* context,
                                     const v1::GetStatsRequest* request,
                                     v1::GetStatsResponse* response) override {
    return Serve(shared_, context, "phub.v1.Admin/GetStats", request, response,
                 [](Control& control, const Caller& caller, const v1::GetStatsRequest& scoped,
                    const Answer<v1::GetStatsResponse>& answer) {
                   control.metrics().GetStats(
                       scoped, [&](const absl::Status& status, const v1::GetStatsResponse& all) {
                         answer(status, IsTenant(caller) ? OnlyOf(caller.tenant, all) : all);
                       });
                 });
  }

  grpc::ServerUnaryReactor* EvictJob(grpc::CallbackServerContext* context,
                                     const v1::EvictJobRequest* request,
                                     v1::JobInfo* response) override {
    return Serve(shared_, context, "phub.v1.Admin/EvictJob", request, response,
                 [this](Control& control, const Caller& caller, const v1::EvictJobRequest& scoped,
                        Answer<v1::JobInfo> answer) {
                   // Where no job runs there is nothing to record; who asks on and on fills no
                   // disk.
                   if (!Runs(control, scoped))
                     return control.draining().EvictJob(scoped, std::move(answer));
                   const std::string& tenant =
                       scoped.tenant().empty() ? kDefaultTenant : scoped.tenant();
                   RunAudited(shared_, control,
                              NoteOf(caller, "job.evict",
                                     fmt::format("{}/{}", tenant, scoped.job()), scoped.reason()),
                              scoped, std::move(answer),
                              [](Control& under_lock, const v1::EvictJobRequest& asked, auto then) {
                                under_lock.draining().EvictJob(asked, std::move(then));
                              });
                 });
  }

  grpc::ServerUnaryReactor* DrainServer(grpc::CallbackServerContext* context,
                                        const v1::DrainServerRequest* request,
                                        v1::ServerInfo* response) override {
    return Serve(
        shared_, context, "phub.v1.Admin/DrainServer", request, response,
        [this](Control& control, const Caller& caller, const v1::DrainServerRequest& scoped,
               Answer<v1::ServerInfo> answer) {
          const std::string detail =
              scoped.deadline_ns() > 0 ? "deadline " + HumanDuration(scoped.deadline_ns()) : "";
          RunAudited(shared_, control, NoteOf(caller, "server.drain", "", detail), scoped,
                     Tell(std::move(answer), /*serving=*/false),
                     [](Control& under_lock, const v1::DrainServerRequest& asked, auto then) {
                       under_lock.draining().DrainServer(asked, std::move(then));
                     });
        });
  }
  grpc::ServerUnaryReactor* UndrainServer(grpc::CallbackServerContext* context,
                                          const v1::UndrainServerRequest* request,
                                          v1::ServerInfo* response) override {
    return Serve(shared_, context, "phub.v1.Admin/UndrainServer", request, response,
                 [this](Control& control, const Caller& caller,
                        const v1::UndrainServerRequest& scoped, Answer<v1::ServerInfo> answer) {
                   RunAudited(
                       shared_, control, NoteOf(caller, "server.undrain", "", ""), scoped,
                       Tell(std::move(answer), /*serving=*/true),
                       [](Control& under_lock, const v1::UndrainServerRequest& asked, auto then) {
                         under_lock.draining().UndrainServer(asked, std::move(then));
                       });
                 });
  }

  grpc::ServerUnaryReactor* ReportSavedState(grpc::CallbackServerContext* context,
                                             const v1::ReportSavedStateRequest* request,
                                             v1::ReportSavedStateResponse* response) override {
    return Serve(
        shared_, context, "phub.v1.Admin/ReportSavedState", request, response,
        [this](Control& control, const Caller& caller, const v1::ReportSavedStateRequest& scoped,
               Answer<v1::ReportSavedStateResponse> answer) {
          const auto pass_on = [](auto& stub, auto... call) { stub.ReportSavedState(call...); };
          if (IsPassedOn(control, caller, scoped, answer, pass_on)) return;
          const auto iteration = control.snapshots().IterationReadOut(scoped);
          // There is nothing to record; and each snapshot is recorded once, however often it is
          // reported.
          if (!iteration.ok())
            return control.snapshots().ReportSavedState(scoped, std::move(answer));
          const std::string& tenant = scoped.tenant().empty() ? kDefaultTenant : scoped.tenant();
          if (!shared_.audited_saves[tenant].Take(SystemClock().Now())) {
            control.Count(ControlCounter::audit_suppressed);
            return control.snapshots().ReportSavedState(scoped, std::move(answer));
          }
          RunAudited(shared_, control,
                     NoteOf(caller, "job.save", fmt::format("{}/{}", tenant, scoped.job()),
                            fmt::format("iteration {} in {} on {}", *iteration, scoped.directory(),
                                        scoped.host())),
                     scoped, std::move(answer),
                     [](Control& under_lock, const v1::ReportSavedStateRequest& asked, auto then) {
                       under_lock.snapshots().ReportSavedState(asked, std::move(then));
                     });
        });
  }

  grpc::ServerWriteReactor<v1::SnapshotPart>* ReadSnapshot(
      grpc::CallbackServerContext* context, const v1::ReadSnapshotRequest* request) override {
    const Admission admission = shared_.access.Admit(*context, "phub.v1.Admin/ReadSnapshot");
    // Both delete themselves in OnDone.
    if (const std::optional<RackIndex> from = RackOf(*request)) {
      v1::ReadSnapshotRequest scoped = *request;
      if (IsTenant(admission.caller)) scoped.set_tenant(admission.caller.tenant);
      auto* const relay = new SnapshotRelay(shared_.thread, *shared_.relay, *from, scoped);
      shared_.thread.Run([&](Control& control) {
        shared_.Keep(control, relay, admission);
        if (!shared_.closed && admission.status.ok()) relay->Begin();
      });
      return relay;
    }
    auto* const stream = new SnapshotStream(shared_.thread, *request);
    shared_.thread.Run([&](Control& control) {
      shared_.Keep(control, stream, admission);
      if (shared_.closed || !admission.status.ok()) return;
      const absl::Status status = CheckSnapshot(control, admission.caller, *request);
      status.ok() ? stream->Begin(control) : stream->End(status);
    });
    return stream;
  }

 private:
  // Whether the call is not for this daemon, but for another rack's or for nobody: then it is
  // answered.
  template <typename Request, typename Response, typename Call>
  bool IsPassedOn(Control& control, const Caller& caller, const Request& request,
                  const Answer<Response>& answer, Call call) {
    absl::StatusOr<std::optional<RackIndex>> rack = std::nullopt;
    if (absl::Status may = CheckPassedOn(control, caller, request.rack()); !may.ok()) rack = may;
    if (rack.ok() && request.has_rack()) rack = control.rack_messages().RackToAsk(request.rack());
    if (rack.ok() && !rack->has_value()) return false;
    if (rack.ok() && shared_.relay == nullptr) rack = absl::UnimplementedError("no other racks");
    if (rack.ok()) {
      shared_.relay->PassOn(**rack, request, answer, std::move(call));
    } else {
      answer(rack.status(), {});
    }
    return true;
  }
  // Whose snapshot is read; nobody: this daemon says of which it is not.
  std::optional<RackIndex> RackOf(const v1::ReadSnapshotRequest& request) {
    if (!request.has_rack() || shared_.relay == nullptr) return std::nullopt;
    const auto rack = shared_.thread.Run(
        [&](Control& control) { return control.rack_messages().RackToAsk(request.rack()); });
    return rack.ok() ? *rack : std::nullopt;
  }
  // The health service says what the answer says, before whoever asked can look.
  Answer<v1::ServerInfo> Tell(Answer<v1::ServerInfo> answer, bool serving) {
    return [this, serving, answer = std::move(answer)](const absl::Status& status,
                                                       const v1::ServerInfo& info) {
      if (status.ok()) shared_.thread.Defer([this, serving] { shared_.set_serving(serving); });
      answer(status, info);
    };
  }

  Shared& shared_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAdminService(Shared& shared) {
  return std::make_unique<AdminService>(shared);
}

}  // namespace phub::server
