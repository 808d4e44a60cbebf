// Jobs that span racks: how they are opened, everywhere or nowhere. Rack 0's daemon does it; ranks
// that come to another one are held there, and rack 0 is asked.
#include <algorithm>

#include "common/base/log.h"
#include "common/base/printable.h"
#include "server/control/jobs/job_options.h"
#include "server/control/jobs/key_specs.h"
#include "server/control/jobs/local_rack.h"
#include "server/control/racks/rack_run.h"
#include "server/control/racks/rack_survey.h"
#include "server/control/state.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

constexpr DurationNs kOpeningTimeouts = 5;  // in liveness timeouts
constexpr std::size_t kHeldMax = 4096;
constexpr std::size_t kHeldBytesMax = 256 << 20;  // each has its job's plan

// What a job that is opened from another rack looks like to Join's own parts.
v1::JoinRequest RequestOf(const v1::PeerJob& job, Incarnation incarnation) {
  v1::JoinRequest request;
  request.set_tenant(job.tenant());
  request.set_job(job.job());
  *request.mutable_options() = job.options();
  request.set_incarnation(incarnation.value);
  return request;
}

const std::string& TenantOf(const v1::JoinRequest& request) {
  static const std::string fallback = kDefaultTenant;
  return request.tenant().empty() ? fallback : request.tenant();
}

// As its first rank asks for it; the rank counts in the whole job.
v1::PeerJob JobOf(const v1::JoinRequest& request, const JobSettings& settings) {
  v1::PeerJob job;
  job.set_tenant(TenantOf(request));
  job.set_job(request.job());
  *job.mutable_options() = request.options();
  for (const std::uint32_t count : settings.daemon_cores) job.add_daemon_cores(count);
  job.mutable_options()->set_chunk_bytes(settings.chunk_bytes);
  job.mutable_options()->set_staging_bytes_per_lane(settings.staging_bytes_per_lane);
  // Which rack's default it is would else depend on who comes first.
  if (settings.on_loss == LossPolicy::kWait) {
    job.mutable_options()->set_wait_timeout_ns(settings.wait_timeout);
  }
  job.set_created_by(request.rank());
  return job;
}

// What another rack's daemon asks of this one, or rack 0's tells it.
absl::StatusOr<JobSettings> ReadJob(const Control::State& state, RackIndex from,
                                    const v1::PeerJob& job) {
  const std::vector<std::uint32_t> cores(job.daemon_cores().begin(), job.daemon_cores().end());
  const std::string problem =
      ProblemInCores(state.options, state.links.size(), state.DescribeRackBriefly(from), cores);
  if (problem.empty()) return CheckOpen(RequestOf(job, {}), state.options, cores);
  return absl::FailedPreconditionError(fmt::format("job {}: {}", job.job(), problem));
}

}  // namespace

// A rank that asks again has another connection than before, and hears by that one.
absl::Status Control::State::Hold(HeldJoin held) {
  const auto is_same = [&](const HeldJoin& each) {
    return TenantOf(each.request) == TenantOf(held.request) &&
           each.request.job() == held.request.job() && each.request.rank() == held.request.rank() &&
           each.request.host() == held.request.host() && each.request.pid() == held.request.pid();
  };
  const auto earlier = std::find_if(racks.held.begin(), racks.held.end(), is_same);
  if (earlier != racks.held.end()) {
    const Answer<v1::JoinResponse> answer = std::move(earlier->answer);
    racks.held.erase(earlier);
    answer(absl::CancelledError("the rank asked again"), {});
  }
  std::size_t bytes = held.request.ByteSizeLong();
  for (const HeldJoin& each : racks.held) bytes += each.request.ByteSizeLong();
  if (racks.held.size() >= kHeldMax || bytes > kHeldBytesMax) {
    return Refuse(ControlCounter::joins_refused_capacity,
                  absl::ResourceExhaustedError(fmt::format(
                      "job {} was not opened: {} ranks wait already until {} opens their jobs",
                      held.request.job(), racks.held.size(), DescribeRackBriefly(RackIndex{0}))));
  }
  racks.held.push_back(std::move(held));
  return absl::OkStatus();
}

// A rank came, and there is no such job here: of another rack than 0. Or, of rack 0, an older run
// waits here to hear that other racks' ranks have left, or the topology is not measured yet; it is
// asked as any other, and waits, too.
void Control::State::AskToOpen(HeldJoin held, const JobSettings& settings) {
  held.request.set_tenant(TenantOf(held.request));
  if (AwaitsSurvey(*this)) {  // nobody waits for what will be refused
    if (absl::Status status = CheckRoom(held.request); !status.ok()) {
      return held.answer(status, {});
    }
  }
  v1::PeerMessage message;
  *message.mutable_request() = JobOf(held.request, settings);
  const Incarnation incarnation{held.request.incarnation()};
  message.set_incarnation(incarnation.value);
  const v1::PeerJob& job = message.request();
  const Answer<v1::JoinResponse> answer = held.answer;
  if (job.ByteSizeLong() > kPeerMessageBytesMax) {
    return answer(
        Refuse(ControlCounter::joins_refused_plan,
               absl::InvalidArgumentError(fmt::format(
                   "job {}: as it is asked for it has {} bytes, and at most {} go to other "
                   "racks",
                   job.job(), job.ByteSizeLong(), kPeerMessageBytesMax))),
        {});
  }
  if (const absl::Status status = Hold(std::move(held)); !status.ok()) return answer(status, {});
  // One request is enough for all ranks that wait, unless rack 0 has forgotten it.
  const std::uint64_t instance = racks.known[0].instance;
  const bool asked = std::any_of(racks.held.begin(), racks.held.end(), [&](const HeldJoin& each) {
    return TenantOf(each.request) == job.tenant() && each.request.job() == job.job() &&
           each.request.incarnation() == incarnation.value && each.asked_instance == instance;
  });
  if (asked) return;
  racks.held.back().asked_instance = instance;
  if (options.rack_index == 0) return Defer(RackIndex{0}, message);
  SendToRack(RackIndex{0}, incarnation, std::move(message));
}

// Rack 0: a rank came here, and there is no such job.
absl::StatusOr<Job*> Control::State::OpenRackJob(const v1::JoinRequest& request,
                                                 const JobSettings& settings) {
  return OpenEverywhere(JobOf(request, settings), settings, Incarnation{request.incarnation()});
}

// incarnation: 0 at the rack's first daemon, which draws it.
absl::StatusOr<Job*> Control::State::OpenEverywhere(v1::PeerJob job, const JobSettings& settings,
                                                    Incarnation incarnation) {
  if (absl::Status status = ChoosePlan(job); !status.ok()) {
    return Refuse(ControlCounter::joins_refused_plan, status);
  }
  if (job.ByteSizeLong() > kPeerMessageBytesMax) {  // as asked for, and as it is
    return Refuse(ControlCounter::joins_refused_plan,
                  absl::InvalidArgumentError(fmt::format(
                      "job {}: with its plan it has {} bytes, and at most {} go to other racks",
                      job.job(), job.ByteSizeLong(), kPeerMessageBytesMax)));
  }
  auto made = CreateRackJob(job, settings, is_anchor() ? DrawIncarnation() : incarnation);
  if (!made.ok()) return made;
  v1::PeerMessage open;
  *open.mutable_open() = job;
  SendToRacks((*made)->account.incarnation, open);
  return made;
}

absl::StatusOr<Job*> Control::State::CreateRackJob(const v1::PeerJob& job,
                                                   const JobSettings& settings,
                                                   Incarnation incarnation) {
  if (!ledger.HasTenant(job.tenant()) || ledger.IsSuspended(job.tenant())) {
    return Refuse(ControlCounter::joins_refused_tenant,
                  absl::FailedPreconditionError(fmt::format(
                      "{} has no tenant {}, or has suspended it",
                      DescribeRackBriefly(RackIndex{options.rack_index}), job.tenant())));
  }
  if (ledger.RequiresEncryption(job.tenant()) && !options.tls_lanes) {
    return Refuse(
        ControlCounter::joins_refused_plan,
        absl::FailedPreconditionError(fmt::format(
            "job {}: tenant {} requires encrypted lanes, and data_tls is off at {}", job.job(),
            job.tenant(), DescribeRackBriefly(RackIndex{options.rack_index}))));
  }
  auto topology = TopologyOfJob(*this, job);
  if (!topology.ok()) return Refuse(ControlCounter::topologies_refused, topology.status());
  absl::StatusOr<std::unique_ptr<RackRun>> run = MakeRackRun(*this, job, *std::move(topology));
  if (!run.ok()) return Refuse(ControlCounter::joins_refused_plan, run.status());
  v1::JoinRequest request = RequestOf(job, incarnation);
  request.set_rank(job.created_by() - settings.rank_base);  // of another rack: beyond all here
  absl::StatusOr<Job*> made = CreateJob(request, settings, *std::move(run));
  if (!made.ok()) return made;
  LogInfo("event=rack_job_created tenant={} job=\"{}\" rack={} plan={} asked={}", job.tenant(),
          job.job(), options.rack_index, (*made)->rack_run->planner, (*made)->rack_run->asked);
  return made;
}

// Rack 0: whether the job that is asked for may be opened. is_settled: there is nothing to do now.
absl::Status Control::State::CheckNoRun(RackIndex from, const v1::PeerMessage& message,
                                        bool& is_settled) {
  const v1::PeerJob& asked = message.request();
  const Incarnation incarnation{message.incarnation()};
  const absl::StatusOr<Job*> run = FindRunOf(incarnation, asked.tenant(), asked.job());
  if (!run.ok()) return run.status();
  Job* const running = FindRunningJob(asked.tenant(), asked.job());
  is_settled = *run != nullptr;  // it is being opened there
  if (is_settled || running == nullptr) return absl::OkStatus();
  if (!is_anchor()) {
    // The request may have waited long, so its run is not newer for being asked for later. A rank
    // that is here now knows: of another rack, its daemon ends the older run before it asks; or
    // that it is over is on its way here from a third.
    const TimeNs since = racks.deferred_since != 0 ? racks.deferred_since : clock.Now();
    is_settled = IsLeavingRacks(*running) || clock.Now() - since < options.liveness_timeout;
    if (is_settled) {
      Defer(from, message);
      return absl::OkStatus();
    }
    return absl::UnavailableError(
        fmt::format("job {} was not opened: {} has another run of it, incarnation {}, which is not "
                    "over; end it (phubctl job evict), or try again",
                    asked.job(), DescribeRackBriefly(RackIndex{0}),
                    FormatIncarnation(running->account.incarnation)));
  }
  if (running->rack_run == nullptr) {
    return absl::AlreadyExistsError(
        fmt::format("{} runs a job {} of tenant {} that does not span racks",
                    DescribeRackBriefly(RackIndex{0}), asked.job(), asked.tenant()));
  }
  // It is being opened there, or it is a run that is not quite over here.
  is_settled = true;
  if (running->rack_run->racks[from.value].opened) Defer(from, message);
  return absl::OkStatus();
}

// Rack 0: a rank came to another rack, or here while an older run was not over.
void Control::State::HandleOpenRequest(RackIndex from, const v1::PeerMessage& message) {
  const v1::PeerJob& asked = message.request();
  const Incarnation incarnation{message.incarnation()};
  if (options.rack_index != 0 || is_anchor() != (incarnation.value == 0)) {
    return counters.Add(ControlCounter::peers_refused_place);
  }
  if (AwaitsSurvey(*this) && !draining) return Defer(from, message);
  // Of the first daemon's own ranks that was all they waited for.
  if (from.value == 0 && is_anchor()) return JoinHeld(asked, incarnation);
  bool is_settled = false;
  absl::Status status = CheckNoRun(from, message, is_settled);
  if (status.ok() && !is_settled) {
    const absl::StatusOr<JobSettings> settings = ReadJob(*this, from, asked);
    status = settings.status();
    if (status.ok() && draining) {
      status = absl::UnavailableError(
          fmt::format("{} is draining and takes no new jobs", DescribeRackBriefly(RackIndex{0})));
    }
    if (status.ok()) status = OpenEverywhere(asked, *settings, incarnation).status();
  }
  const bool stands = status.ok() && FindIncarnation(incarnation) != nullptr;
  if (from.value == 0 && stands) JoinHeld(asked, incarnation);
  if (!status.ok()) RefuseRequest(*this, from, message, status);
}

void Control::State::RefuseHeld(const v1::PeerRefused& refused, Incarnation incarnation) {
  absl::Status status(static_cast<absl::StatusCode>(refused.code()), refused.message());
  if (status.ok())
    status = absl::InternalError(refused.message());  // no rank may take it for a yes
  for (HeldJoin& held : TakeHeld(refused.tenant(), refused.job(), incarnation)) {
    held.answer(status, {});
  }
}

// It is here now.
void Control::State::JoinHeld(const v1::PeerJob& job, Incarnation incarnation) {
  for (HeldJoin& held : TakeHeld(job.tenant(), job.job(), incarnation)) {
    Join(held.request, held.peer_address, std::move(held.answer));
  }
}

std::list<HeldJoin> Control::State::TakeHeld(const std::string& tenant, const std::string& job,
                                             Incarnation incarnation) {
  // Ranks know the run from the rack's first daemon, but for those that are there.
  const std::uint64_t asked_for = is_anchor() ? 0 : incarnation.value;
  std::list<HeldJoin> taken;
  for (auto held = racks.held.begin(); held != racks.held.end();) {
    const auto next = std::next(held);
    if (TenantOf(held->request) == tenant && held->request.job() == job &&
        held->request.incarnation() == asked_for) {
      taken.splice(taken.end(), racks.held, held);
    }
    held = next;
  }
  return taken;
}

// Rack 0 has opened a job: this rack's part of it, or why there is none.
void Control::State::HandleOpen(RackIndex from, const v1::PeerMessage& message) {
  const v1::PeerJob& job = message.open();
  const Incarnation incarnation{message.incarnation()};
  if (from.value != 0) return counters.Add(ControlCounter::peers_refused_place);
  const bool is_new = incarnation.value != 0 && FindRun(incarnation) == nullptr;
  if (Job* const running = FindRunningJob(job.tenant(), job.job()); running != nullptr && is_new) {
    if (IsLeavingRacks(*running)) return Defer(from, message);
    // A run that spans racks was begun by workers that may be gone; one of this rack has its own.
    if (!is_anchor() && running->rack_run != nullptr) {
      Supersede(*running, incarnation, DescribeRackBriefly(from));
    }
  }
  absl::Status status = absl::OkStatus();
  if (!is_new) {
    status = absl::AlreadyExistsError(
        fmt::format("{} cannot give job {} incarnation {}: it is none, or another run's",
                    DescribeRackBriefly(RackIndex{options.rack_index}), job.job(),
                    FormatIncarnation(incarnation)));
  } else if (FindRunningJob(job.tenant(), job.job()) != nullptr) {
    status = absl::AlreadyExistsError(
        fmt::format("{} runs another job {} of tenant {}",
                    DescribeRackBriefly(RackIndex{options.rack_index}), job.job(), job.tenant()));
  }
  const absl::StatusOr<JobSettings> settings = ReadJob(*this, from, job);
  if (status.ok()) status = settings.status();
  if (status.ok()) {
    const auto made = CreateRackJob(job, *settings, incarnation);
    status = made.status();
    if (made.ok()) (*made)->rack_run->racks[from.value].instance = racks.known[from.value].instance;
  }
  v1::PeerMessage answer;
  answer.mutable_opened()->set_code(static_cast<int>(status.code()));
  answer.mutable_opened()->set_message(std::string(status.message()));
  SendToRack(from, incarnation, std::move(answer));
  if (status.ok()) return JoinHeld(job, incarnation);
  for (HeldJoin& held : TakeHeld(job.tenant(), job.job(), incarnation)) held.answer(status, {});
}

void Control::State::HandleOpened(Job& job, RackIndex from, const v1::PeerOpened& opened) {
  if (opened.code() != 0) {
    return Fail(job, MakeFault(job, "rack_refused",
                               fmt::format("{} refused it: {}", DescribeRackBriefly(from),
                                           Printable(opened.message()))));
  }
  job.rack_run->racks[from.value].opened = true;
  AdvanceRackRun(job);
}

void Control::State::HandleReady(Job& job, RackIndex from) {
  job.rack_run->racks[from.value].ready = true;
  AdvanceRackRun(job);
}

void Control::State::HandleStart(Job& job, RackIndex from) {
  const RackRun& run = *job.rack_run;
  if (from.value != 0 || run.state != RackRun::State::kConnecting || !run.said_ready) {
    return counters.Add(ControlCounter::peers_refused_place);
  }
  StandRackRun(job);
}

// Rack 0 begins to connect once every rack has opened; other racks when they are dialled or told.
void Control::State::AdvanceRackRun(Job& job) {
  RackRun& run = *job.rack_run;
  if (run.state == RackRun::State::kOpening) {
    if (!Acknowledged(job.add_job_tickets)) return;
    PeerRack& own = run.racks[options.rack_index];
    own.opened = true;
    const bool all = std::all_of(run.racks.begin(), run.racks.end(),
                                 [](const PeerRack& rack) { return rack.opened; });
    // Only rack 0 knows of all; the others may grant lanes once they have the job themselves, as
    // rack 0 sends `open` before anybody can be asked to connect.
    if (options.rack_index == 0 && !all) return;
    run.state = RackRun::State::kConnecting;
    if (options.rack_index == 0) {
      v1::PeerMessage message;
      message.mutable_connect();
      SendToRacks(job.account.incarnation, message);
      GrantPeerLanes(job);
    }
  }
  if (run.state == RackRun::State::kConnecting) CheckReady(job);
  AnnounceProgress(job);
}

// A rack that was started anew at the wrong moment has lost what it was told.
void Control::State::CheckOpening(Job& job, TimeNs now) {
  const RackRun& run = *job.rack_run;
  if (!job.running() || run.state == RackRun::State::kStanding ||
      now - job.created_at < kOpeningTimeouts * options.liveness_timeout) {
    return;
  }
  std::string missing;
  for (std::uint32_t rack = 0; options.rack_index == 0 && rack < run.racks.size(); ++rack) {
    if (run.racks[rack].ready) continue;
    missing +=
        fmt::format("{}{}{}", missing.empty() ? "" : ", ", DescribeRackBriefly(RackIndex{rack}),
                    DescribeTrouble(racks.known[rack]));
  }
  Fail(job, MakeFault(job, "rack_not_ready",
                      fmt::format("it was not opened in all racks within {}{}{}",
                                  FormatAge(kOpeningTimeouts * options.liveness_timeout),
                                  missing.empty() ? "" : "; not ready: ", missing)));
}

void Control::State::StandRackRun(Job& job) {
  job.rack_run->state = RackRun::State::kStanding;
  LogInfo("event=rack_job_stands tenant={} job=\"{}\"", job.account.tenant, job.name());
  // The rank that asked for it is here, or has given up: then nobody else may ever come.
  if (job.created_by.value < job.members.size()) NoteIfNobodyIsHere(job);
  AnswerAcknowledged(job);
}

}  // namespace phub::server
