// Joining a job.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "client/session/job_state.h"
#include "client/session/rack_join.h"
#include "common/base/check.h"
#include "common/base/host_name.h"
#include "common/base/log.h"

namespace phub::client {

JobState::JobState(JobSettings settings) : settings_(std::move(settings)) {}

JobState::~JobState() { PHUB_CHECK(engine_ == nullptr || ended(), "job={}", name()); }

Result<std::shared_ptr<JobState>> JobState::Join(JobSettings settings) {
  std::shared_ptr<JobState> job(new JobState(std::move(settings)));
  Status status = job->JoinRackAndStart();
  // A verdict that came meanwhile says more than a lane that could not be opened because of it.
  if (const Status verdict = job->status(); !verdict.ok()) status = verdict;
  if (status.ok()) return job;
  // The rank must not stay taken, and others, whose rounds need it, are told why.
  job->Shutdown(
      Status(status.code(), fmt::format("job {}: rank {} ({}) could not take part: {}", job->name(),
                                        job->rank(), HostName(), status.message())));
  return status;
}

Status JobState::JoinRackAndStart() {
  const JoinSettings join{.daemon = settings_.daemon,
                          .tenant = settings_.tenant,
                          .call_timeout = call_timeout_ns(),
                          .options = settings_.options};
  Result<DaemonLinks> links = JoinRack(join, *settings_.connector, waiter_);
  if (!links.ok()) return links.status();
  links_ = *std::move(links);
  StartThreads();
  const Status opened = lanes_->OpenAll(
      call_timeout_ns(),
      [this](std::uint32_t lane, std::uint8_t index, transport::Connection& connection) {
        OnLaneOpened(lane, index, connection);
      });
  if (!opened.ok()) return opened;
  return AskWhereToResume();
}

void JobState::StartThreads() {
  const JobOptions& options = settings_.options;
  const v1::JoinResponse& anchor = links_.front()->joined;
  layout_ = std::make_unique<LaneLayout>(anchor.chunk_bytes(), LaneCount(links_));
  if (options.transport == TransportChoice::kAuto || options.transport == TransportChoice::kVerbs)
    verbs_ = std::make_unique<VerbsSide>(links_.front()->endpoint.host);
  const bool wait = options.on_loss == LossPolicy::kWait;
  lanes_ = std::make_unique<RackLanes>(RackLanesSettings{.job = name(),
                                                         .rank = rank(),
                                                         .wait = wait,
                                                         .transport = options.transport,
                                                         .boot_id = settings_.boot_id,
                                                         .verbs = verbs_.get()},
                                       links_, waiter_);
  // The daemon may have bounded what was asked for.
  const DurationNs wait_timeout =
      anchor.wait_timeout_ns() > 0
          ? anchor.wait_timeout_ns()
          : std::chrono::duration_cast<std::chrono::nanoseconds>(options.wait_timeout).count();
  watch_ =
      std::make_unique<RackWatch>(RackWatchSettings{.job = name(),
                                                    .rank = rank(),
                                                    .wait = wait,
                                                    .wait_timeout = wait_timeout,
                                                    .call_timeout = call_timeout_ns()},
                                  links_, *lanes_, clock_, waiter_, *this);
  engine_ = std::make_unique<EngineThread>(
      EngineConfig{.incarnation = Incarnation{anchor.incarnation()},
                   .membership_epoch = MembershipEpoch{anchor.membership_epoch()},
                   .slots_per_lane = anchor.slots_per_lane(),
                   .lane_count = layout_->lane_count(),
                   .chunk_bytes = anchor.chunk_bytes(),
                   .apply_iteration = applies_iterations(),
                   .clip_norm = options.clip_norm,
                   .skip_nonfinite = options.skip_nonfinite,
                   .restart = options.restart},
      clock_, *this,
      verbs_ == nullptr ? std::vector<std::shared_ptr<transport::VerbsQueue>>() : verbs_->queues());
  watch_->Start();
}

void JobState::OnLaneOpened(std::uint32_t lane, std::uint8_t transport_index,
                            transport::Connection& connection) {
  Submit({.kind = Command::Kind::kAttachLane,
          .transport_index = transport_index,
          .lane = lane,
          .connection = &connection});
}

Status JobState::AskWhereToResume() {
  std::vector<DaemonVersions> daemons;
  for (const std::unique_ptr<DaemonLink>& link : links_)
    daemons.push_back(
        {.daemon = link->endpoint.ToString(), .resumed = link->joined.resumed(), .versions = {}});
  if (std::none_of(daemons.begin(), daemons.end(),
                   [](const DaemonVersions& daemon) { return daemon.resumed; }))
    return Status();
  auto answers = CallEach<v1::GetVersionsResponse>(AllLinks(), [this](DaemonLink& link, auto done) {
    v1::GetVersionsRequest request;
    request.set_session_id(link.joined.session_id());
    link.channel->Call<rpc::GetVersions>(request, call_timeout_ns(), std::move(done));
  });
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (!answers[i].ok()) return FromCall("GetVersions", *links_[i], answers[i].status());
    daemons[i].versions = *std::move(answers[i]);
  }
  Result<ResumePlan> plan = MakeResumePlan(daemons);
  if (!plan.ok())
    return Status(plan.status().code(),
                  fmt::format("{} (job {}, rank {})", plan.status().message(), name(), rank()));
  resume_ = *std::move(plan);
  keyless_iteration_ = resume_.iteration;
  if (resume_.resumed)
    LogInfo("event=rank_resumed job={} rank={} iteration={} keys={}", name(), rank(),
            resume_.iteration, resume_.keys.size());
  return Status();
}

}  // namespace phub::client
