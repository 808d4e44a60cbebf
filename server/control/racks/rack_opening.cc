// Opens jobs that span racks, in every rack or in none. Rack 0's daemon does it; other daemons hold
// their ranks' joins and send rack 0 a request.
#include "server/control/racks/rack_opening.h"

#include <algorithm>
#include <utility>

#include "common/base/printable.h"
#include "server/control/jobs/ending.h"
#include "server/control/jobs/job_options.h"
#include "server/control/jobs/pending_calls.h"
#include "server/control/keys/key_specs.h"
#include "server/control/on_control.h"
#include "server/control/racks/peer_lanes.h"
#include "server/control/racks/rack_groups.h"
#include "server/control/racks/rack_jobs.h"
#include "server/control/racks/rack_messages.h"
#include "server/control/racks/rack_plans.h"
#include "server/control/racks/rack_run.h"
#include "server/control/racks/topology_survey.h"
#include "server/control/ranks/joins.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

constexpr DurationNs kOpeningTimeouts = 5;  // in liveness timeouts
// Converts a job that another rack opens into a join request, as the functions that check and
// create jobs expect.
v1::JoinRequest RequestOf(const v1::PeerJob& job, Incarnation incarnation) {
  v1::JoinRequest request;
  request.set_tenant(job.tenant());
  request.set_job(job.job());
  *request.mutable_options() = job.options();
  request.set_incarnation(incarnation.value);
  return request;
}

}  // namespace

absl::StatusOr<JobSettings> RackOpening::ReadJob(RackIndex from, const v1::PeerJob& job) const {
  const std::vector<std::uint32_t> cores(job.daemon_cores().begin(), job.daemon_cores().end());
  const std::string problem = ProblemInCores(context_.options, context_.cores.size(),
                                             context_.options.DescribeRack(from), cores);
  if (problem.empty()) return CheckOpen(RequestOf(job, {}), context_.options, cores);
  return absl::FailedPreconditionError(fmt::format("job {}: {}", job.job(), problem));
}

bool RackOpening::OpensAtOnce() const {
  return context_.options.rack_index == 0 && !survey_.AwaitsSurvey();
}

// At rack 0: a rank joins, and there is no such job.
absl::StatusOr<Job*> RackOpening::Open(const v1::JoinRequest& request,
                                       const JobSettings& settings) {
  return OpenEverywhere(JobOf(request, settings), settings, Incarnation{request.incarnation()});
}

// incarnation: 0 at the rack's first daemon, which draws one.
absl::StatusOr<Job*> RackOpening::OpenEverywhere(v1::PeerJob job, const JobSettings& settings,
                                                 Incarnation incarnation) {
  if (absl::Status status = plans_.ChoosePlan(job); !status.ok()) {
    return context_.Refuse(ControlCounter::joins_refused_plan, status);
  }
  if (job.ByteSizeLong() > kPeerMessageBytesMax) {  // the job with its options and its plan
    return context_.Refuse(ControlCounter::joins_refused_plan,
                           absl::InvalidArgumentError(
                               fmt::format("job {}: its description and plan have {} bytes, and at "
                                           "most {} can be sent to other racks",
                                           job.job(), job.ByteSizeLong(), kPeerMessageBytesMax)));
  }
  auto made = CreateRackJob(job, settings,
                            context_.options.is_anchor() ? jobs_.DrawIncarnation() : incarnation);
  if (!made.ok()) return made;
  v1::PeerMessage open;
  *open.mutable_open() = job;
  messages_.SendToRacks(**made, open);
  return made;
}

absl::StatusOr<Job*> RackOpening::CreateRackJob(const v1::PeerJob& job, const JobSettings& settings,
                                                Incarnation incarnation) {
  if (!context_.ledger.HasTenant(job.tenant()) || context_.ledger.IsSuspended(job.tenant())) {
    return context_.Refuse(
        ControlCounter::joins_refused_tenant,
        absl::FailedPreconditionError(fmt::format(
            "{} has no tenant {} or has suspended it",
            context_.options.DescribeRack(RackIndex{context_.options.rack_index}), job.tenant())));
  }
  if (context_.ledger.RequiresEncryption(job.tenant()) && !context_.options.tls_lanes) {
    return context_.Refuse(
        ControlCounter::joins_refused_plan,
        absl::FailedPreconditionError(fmt::format(
            "job {}: tenant {} requires encrypted lanes, but data_tls is off at {}", job.job(),
            job.tenant(), context_.options.DescribeRack(RackIndex{context_.options.rack_index}))));
  }
  auto topology = survey_.TopologyOfJob(job);
  if (!topology.ok()) return context_.Refuse(ControlCounter::topologies_refused, topology.status());
  absl::StatusOr<std::unique_ptr<RackRun>> run = plans_.MakeRackRun(job, *std::move(topology));
  if (!run.ok()) return context_.Refuse(ControlCounter::joins_refused_plan, run.status());
  v1::JoinRequest request = RequestOf(job, incarnation);
  // The rank of another rack becomes a number beyond all ranks here.
  request.set_rank(job.created_by() - settings.rank_base);
  const std::shared_ptr<RackRun> made_run = *std::move(run);
  absl::StatusOr<Job*> made = joins_.CreateJob(request, settings, {made_run, made_run->exchange});
  if (!made.ok()) return made;
  context_.log.Info("event=rack_job_created tenant={} job=\"{}\" rack={} plan={} asked={}",
                    job.tenant(), job.job(), context_.options.rack_index,
                    (*made)->rack_run->planner, (*made)->rack_run->asked);
  return made;
}

// At rack 0: checks whether the requested job may be opened. is_settled: nothing needs to be done
// now.
absl::Status RackOpening::CheckNoRun(RackIndex from, const v1::PeerMessage& message,
                                     bool& is_settled) {
  const v1::PeerJob& asked = message.request();
  const Incarnation incarnation{message.incarnation()};
  const absl::StatusOr<Job*> run = local_rack_.FindRunOf(incarnation, asked.tenant(), asked.job());
  if (!run.ok()) return run.status();
  Job* const running = jobs_.FindRunningJob(asked.tenant(), asked.job());
  is_settled = *run != nullptr;  // the job is being opened already
  if (is_settled || running == nullptr) return absl::OkStatus();
  if (!context_.options.is_anchor()) {
    // The request may have waited for long, so it does not prove that its run is the newer one. It
    // is deferred for a while. In that time the older run may end: a rank's own daemon ends it
    // before it sends the request, or a third rack's message about its end is on the way.
    const TimeNs since = deferred_.Since(context_.clock.Now());
    is_settled = rack_jobs_.IsLeaving(*running) ||
                 context_.clock.Now() - since < context_.options.liveness_timeout;
    if (is_settled) {
      messages_.Defer(from, message);
      return absl::OkStatus();
    }
    return absl::UnavailableError(fmt::format(
        "job {} was not opened: {} has another run of it that has not ended (incarnation {}); "
        "evict it (phubctl job evict) or try again later",
        asked.job(), context_.options.DescribeRack(RackIndex{0}),
        FormatIncarnation(running->account.incarnation)));
  }
  if (running->rack_run == nullptr) {
    return absl::AlreadyExistsError(
        fmt::format("{} already runs a job {} of tenant {} that does not span racks",
                    context_.options.DescribeRack(RackIndex{0}), asked.job(), asked.tenant()));
  }
  // The job is being opened already, or this is an earlier run that has not quite ended here.
  is_settled = true;
  if (running->rack_run->protocol.HasOpened(from)) messages_.Defer(from, message);
  return absl::OkStatus();
}

// At rack 0: a rank joined at another rack, or here before an older run had ended.
void RackOpening::HandleOpenRequest(RackIndex from, const v1::PeerMessage& message) {
  PHUB_ON_CONTROL();
  const v1::PeerJob& asked = message.request();
  const Incarnation incarnation{message.incarnation()};
  if (context_.options.rack_index != 0 ||
      context_.options.is_anchor() != (incarnation.value == 0)) {
    return context_.counters.Add(ControlCounter::peers_refused_place);
  }
  if (survey_.AwaitsSurvey() && !context_.drain.draining) return messages_.Defer(from, message);
  // Ranks of rack 0's first daemon waited only for the topology.
  if (from.value == 0 && context_.options.is_anchor()) return JoinHeld(asked, incarnation);
  bool is_settled = false;
  absl::Status status = CheckNoRun(from, message, is_settled);
  if (status.ok() && !is_settled) {
    const absl::StatusOr<JobSettings> settings = ReadJob(from, asked);
    status = settings.status();
    if (status.ok() && context_.drain.draining) {
      status = absl::UnavailableError(fmt::format("{} is draining and accepts no new jobs",
                                                  context_.options.DescribeRack(RackIndex{0})));
    }
    if (status.ok() && AwaitsGrant(from, message, asked, *settings, status)) return;
    if (status.ok()) status = OpenEverywhere(asked, *settings, incarnation).status();
  }
  const bool stands = status.ok() && jobs_.FindIncarnation(incarnation) != nullptr;
  if (from.value == 0 && stands) JoinHeld(asked, incarnation);
  if (!status.ok()) messages_.RefuseRequest(from, message, status);
}

// Rack 0 has opened a job: creates this rack's part of it, or answers why not.
void RackOpening::HandleOpen(RackIndex from, const v1::PeerMessage& message) {
  PHUB_ON_CONTROL();
  const v1::PeerJob& job = message.open();
  const Incarnation incarnation{message.incarnation()};
  if (from.value != 0) return context_.counters.Add(ControlCounter::peers_refused_place);
  const bool is_new = incarnation.value != 0 && jobs_.FindRun(incarnation) == nullptr;
  if (Job* const running = jobs_.FindRunningJob(job.tenant(), job.job());
      running != nullptr && is_new) {
    if (rack_jobs_.IsLeaving(*running)) return messages_.Defer(from, message);
    // The older run was started by workers that may be gone. A job of this rack alone has live
    // workers here.
    if (!context_.options.is_anchor() && running->rack_run != nullptr) {
      local_rack_.Supersede(*running, incarnation, context_.options.DescribeRack(from));
    }
  }
  absl::Status status = absl::OkStatus();
  if (!is_new) {
    status = absl::AlreadyExistsError(
        fmt::format("{} cannot open job {} with incarnation {}: it is 0 or belongs to another run",
                    context_.options.DescribeRack(RackIndex{context_.options.rack_index}),
                    job.job(), FormatIncarnation(incarnation)));
  } else if (jobs_.FindRunningJob(job.tenant(), job.job()) != nullptr) {
    status = absl::AlreadyExistsError(
        fmt::format("{} already runs another job {} of tenant {}",
                    context_.options.DescribeRack(RackIndex{context_.options.rack_index}),
                    job.job(), job.tenant()));
  }
  const absl::StatusOr<JobSettings> settings = ReadJob(from, job);
  if (status.ok()) status = settings.status();
  if (status.ok() && AwaitsGrant(from, message, job, *settings, status)) return;
  if (status.ok()) {
    const auto made = CreateRackJob(job, *settings, incarnation);
    status = made.status();
    if (made.ok()) {
      (*made)->rack_run->protocol.OnPeer(from, PeerEvent::kSpoke, known_.InstanceOf(from));
    }
  }
  v1::PeerMessage answer;
  answer.mutable_opened()->set_code(static_cast<int>(status.code()));
  answer.mutable_opened()->set_message(std::string(status.message()));
  messages_.SendToRack(from, incarnation, std::move(answer));
  if (status.ok()) return JoinHeld(job, incarnation);
  for (HeldJoin& held : TakeHeld(job.tenant(), job.job(), incarnation)) held.answer(status, {});
}

void RackOpening::HandleOpened(Job& job, RackIndex from, const v1::PeerOpened& opened) {
  PHUB_ON_CONTROL();
  if (opened.code() != 0) {
    return ending_.Fail(job, ending_.MakeFault(job, "rack_refused",
                                               fmt::format("{} refused to open the job: {}",
                                                           context_.options.DescribeRack(from),
                                                           Printable(opened.message()))));
  }
  Do(job, job.rack_run->protocol.OnPeer(from, PeerEvent::kSaysOpened));
  AdvanceRackRun(job);
}

// Rack 0 starts to connect once every rack has opened the job; other racks when rack 0 tells them
// to or when they are dialled.
void RackOpening::AdvanceRackRun(Job& job) {
  PHUB_ON_CONTROL();
  RackProtocol& protocol = job.rack_run->protocol;
  if (protocol.opening() && context_.cores.Acknowledged(job.add_job_tickets)) {
    Do(job, protocol.On(RunEvent::kOpenedHere));
  }
  if (protocol.opening()) return;
  if (protocol.connecting() && peer_lanes_.HasAllLanes(*job.rack_run)) {
    Do(job, protocol.On(RunEvent::kLanesAttached));
  }
  rack_jobs_.AnnounceProgress(job);
  rack_groups_.AnnounceProgress(job);
}

void RackOpening::HandleReady(Job& job, RackIndex from) {
  PHUB_ON_CONTROL();
  Do(job, job.rack_run->protocol.OnPeer(from, PeerEvent::kSaysReady));
  AdvanceRackRun(job);
}

void RackOpening::HandleStart(Job& job, RackIndex from) {
  Do(job, job.rack_run->protocol.On(RunEvent::kStartReceived, from));
}

// Performs the steps of the opening, from the first to the last.
void RackOpening::Do(Job& job, const RackSteps& steps) {
  const Incarnation incarnation = job.account.incarnation;
  v1::PeerMessage message;
  if (Has(steps, RackAction::kTellConnect)) {
    message.mutable_connect();
    messages_.SendToRacks(job, message);
  }
  if (Has(steps, RackAction::kGrantLanes)) peer_lanes_.GrantPeerLanes(job, steps);
  if (Has(steps, RackAction::kSayReady)) {
    message.mutable_ready();
    messages_.SendToRack(RackIndex{0}, incarnation, message);
  }
  if (Has(steps, RackAction::kTellStart)) {
    message.mutable_start();
    messages_.SendToRacks(job, message);
  }
  if (Has(steps, RackAction::kStand)) MarkReady(job);
  if (Has(steps, RackAction::kRefuse)) context_.counters.Add(ControlCounter::peers_refused_place);
}

void RackOpening::MarkReady(Job& job) {
  context_.log.Info("event=rack_job_stands tenant={} job=\"{}\"", job.account.tenant, job.name());
  // The rank that requested the job is here or has given up. If it has given up, perhaps no
  // rank ever joins.
  if (job.created_by.value < job.members.size()) messages_.NoteIfNobodyIsHere(job);
  pending_calls_.AnswerAcknowledged(job);
}

// Only rack 0 knows them; empty elsewhere.
std::string RackOpening::UnreadyRacks(const RackRun& run) const {
  std::string missing;
  for (std::uint32_t rack = 0; context_.options.rack_index == 0 && rack < run.racks.size();
       ++rack) {
    if (run.protocol.IsReady(RackIndex{rack})) continue;
    missing += fmt::format("{}{}{}", missing.empty() ? "" : ", ",
                           context_.options.DescribeRack(RackIndex{rack}),
                           known_.DescribeTrouble(RackIndex{rack}));
  }
  return missing;
}

// A rack that restarts during the opening loses its part of it, and the opening would never finish.
void RackOpening::CheckOpening(Job& job, TimeNs now) {
  PHUB_ON_CONTROL();
  RackRun& run = *job.rack_run;
  if (!job.running() ||
      now - job.created_at < kOpeningTimeouts * context_.options.liveness_timeout ||
      !Has(run.protocol.On(RunEvent::kOpeningLate), RackAction::kFail)) {
    return;
  }
  const std::string missing = UnreadyRacks(run);
  ending_.Fail(job, ending_.MakeFault(
                        job, "rack_not_ready",
                        fmt::format("the job was not opened in all racks within {}{}{}",
                                    FormatAge(kOpeningTimeouts * context_.options.liveness_timeout),
                                    missing.empty() ? "" : "; not ready: ", missing)));
}

}  // namespace phub::server
