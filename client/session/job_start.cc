// Joins a job.
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "client/checkpoint/version_pages.h"
#include "client/session/fork.h"
#include "client/session/job_impl.h"
#include "client/session/rack_join.h"
#include "common/aggregation/fixed_point.h"
#include "common/base/check.h"
#include "common/base/host_name.h"
#include "common/base/log.h"

namespace phub::client {
namespace {

// The open connection, and a replaced one that is still being cleaned up.
constexpr std::uint32_t kConnectionsPerLane = 2;

// Returns the rank of a job that could not start for lack of threads, descriptors or memory.
Status GiveUpRank(const JobImpl& job, RackCalls& calls, const absl::Status& why) {
  const std::string text(why.message());
  const Status left = LeaveRack(calls.links(), calls.timeout(), calls.waiter(), text, false);
  if (!left.ok()) {
    LogWarning("event=reservation_not_returned job={} rank={} error=\"{}\"", job.name(), job.rank(),
               left.message());
  }
  return Status(static_cast<StatusCode>(why.code()),
                fmt::format("{} (job {}, rank {})", text, job.name(), job.rank()));
}

// All pages of the versions of the job's keys, from all daemons.
Status AskVersions(const JobImpl& job, RackCalls& calls, std::vector<DaemonVersions>& daemons) {
  std::map<const DaemonLink*, v1::GetVersionsResponse*> pages;
  for (std::size_t i = 0; i < daemons.size(); ++i)
    pages[calls.links()[i].get()] = &daemons[i].versions;
  std::vector<DaemonLink*> left = calls.All();
  while (!left.empty()) {
    auto answers =
        calls.Each<v1::GetVersionsResponse>("GetVersions", left, [&](DaemonLink& link, auto done) {
          v1::GetVersionsRequest request;
          request.set_session_id(link.joined.session_id());
          request.set_first_key(pages[&link]->next_key());
          request.set_page_size(kKeysPerPage);
          link.channel->Call<rpc::GetVersions>(request, calls.timeout(), std::move(done));
        });
    for (std::size_t i = 0; i < left.size(); ++i) {
      absl::Status status = answers[i].status();
      if (status.ok()) status = AddPage(*answers[i], *pages[left[i]]);
      if (!status.ok()) return calls.StatusOf(job, "GetVersions", *left[i], status);
    }
    std::erase_if(left, [&](DaemonLink* link) { return pages[link]->next_key() == 0; });
  }
  return Status();
}

std::vector<MeasuredClock> ClocksOf(const DaemonLinks& links) {
  std::vector<MeasuredClock> clocks;
  for (const auto& link : links)
    if (link->clock) clocks.push_back(*link->clock);
  return clocks;
}

}  // namespace

JobImpl::JobImpl(JobSettings settings)
    : settings_(std::move(settings)),
      calls_(settings_.options, settings_.call_timeout, clock_),
      rack_batches_(*this, calls_, settings_.options.restart) {}

JobImpl::~JobImpl() { PHUB_CHECK(engine_ == nullptr || ended(), "job={}", name()); }

Result<std::shared_ptr<JobImpl>> JobImpl::Join(JobSettings settings) {
  std::shared_ptr<JobImpl> job(new JobImpl(std::move(settings)), DeleteInParent());
  Status status = job->JoinRackAndStart();
  // A verdict that arrived meanwhile explains more than the lane that failed because of it.
  if (const Status verdict = job->status(); !verdict.ok()) status = verdict;
  if (status.ok()) {
    job->in_timeline_ = job->timeline_ != nullptr;
    if (job->in_timeline_) job->timeline_->JobBegan(job->rank(), ClocksOf(job->calls_.links()));
    return job;
  }
  // Free the rank, and send the reason to the other ranks, whose rounds need it.
  job->Shutdown(
      Status(status.code(), fmt::format("job {}: rank {} ({}) could not join: {}", job->name(),
                                        job->rank(), HostName(), status.message())));
  return status;
}

Status JobImpl::JoinRackAndStart() {
  const JoinSettings join{.daemon = settings_.daemon,
                          .tenant = settings_.tenant,
                          .call_timeout = calls_.timeout(),
                          .notice_after = settings_.join_notice_after,
                          .options = settings_.options};
  Result<DaemonLinks> links = JoinRack(join, *settings_.connector, calls_.waiter());
  if (!links.ok()) return links.status();
  calls_.links() = *std::move(links);
  if (const absl::Status started = StartThreads(); !started.ok()) {
    engine_.reset();
    watch_.reset();
    return GiveUpRank(*this, calls_, started);
  }
  const Status opened = lanes_->OpenAll(
      calls_.timeout(),
      [this](std::uint32_t lane, std::uint8_t index, transport::Connection& connection) {
        OnLaneOpened(lane, index, connection);
      });
  if (!opened.ok()) return opened;
  return AskWhereToResume();
}

absl::Status JobImpl::StartThreads() {
  const JobOptions& options = settings_.options;
  const v1::JoinResponse& anchor = calls_.links().front()->joined;
  layout_ = std::make_unique<LaneLayout>(anchor.chunk_bytes(), LaneCount(calls_.links()));
  open_lanes_.SetCount(layout_->lane_count());
  ways_ = std::make_unique<LaneWays>(options.transport, calls_.links().front()->endpoint.host,
                                     settings_.boot_id);
  auto transports =
      ways_->MakeTransports(kConnectionsPerLane * layout_->lane_count(),
                            std::size_t{anchor.slots_per_lane()} * anchor.chunk_bytes());
  if (!transports.ok()) return transports.status();
  const bool wait = options.on_loss == LossPolicy::kWait;
  sum_sockets_.Open(calls_.links());
  lanes_ = std::make_unique<RackLanes>(
      RackLanesSettings{
          .job = name(), .rank = rank(), .wait = wait, .sum_endpoints = sum_sockets_.endpoints()},
      *ways_, calls_.links(), calls_.waiter());
  rack_batches_.SetLanes(*lanes_);
  // The daemon may have reduced the requested timeout.
  const DurationNs wait_timeout =
      anchor.wait_timeout_ns() > 0
          ? anchor.wait_timeout_ns()
          : std::chrono::duration_cast<std::chrono::nanoseconds>(options.wait_timeout).count();
  watch_ = std::make_unique<RackWatch>(RackWatchSettings{.job = name(),
                                                         .rank = rank(),
                                                         .wait = wait,
                                                         .wait_timeout = wait_timeout,
                                                         .call_timeout = calls_.timeout()},
                                       calls_.links(), *lanes_, clock_, calls_.waiter(), *this);
  engine_ = std::make_unique<EngineThread>(
      EngineConfig{
          .incarnation = Incarnation{anchor.incarnation()},
          .membership_epoch = MembershipEpoch{anchor.membership_epoch()},
          .slots_per_lane = anchor.slots_per_lane(),
          .yielding_slots = YieldingSlotsOf(calls_.links()),
          .lane_count = layout_->lane_count(),
          .chunk_bytes = anchor.chunk_bytes(),
          .apply_iteration = applies_iterations(),
          .clip_norm = options.clip_norm,
          .skip_nonfinite = options.skip_nonfinite,
          .report_sent = timeline_ != nullptr,
          .restart = options.restart,
          .liveness_timeout = ShortestLivenessTimeout(calls_.links()),
          .sum_sockets = sum_sockets_.list(),
          .sum_block = options.sum_block != 0 ? options.sum_block : aggregation::kFixedBlockDefault,
          .world_size = options.world_size},
      clock_, *this, *std::move(transports));
  if (absl::Status status = engine_->Start(); !status.ok()) return status;
  return watch_->Start();
}

void JobImpl::OnLaneOpened(std::uint32_t lane, std::uint8_t transport_index,
                           transport::Connection& connection) {
  open_lanes_.Opened(lane);
  Submit({.kind = Command::Kind::kAttachLane,
          .transport_index = transport_index,
          .lane = lane,
          .connection = &connection});
}

Status JobImpl::AskWhereToResume() {
  std::vector<DaemonVersions> daemons;
  for (const std::unique_ptr<DaemonLink>& link : calls_.links())
    daemons.push_back(
        {.daemon = link->endpoint.ToString(), .resumed = link->joined.resumed(), .versions = {}});
  if (std::none_of(daemons.begin(), daemons.end(),
                   [](const DaemonVersions& daemon) { return daemon.resumed; }))
    return Status();
  if (Status asked = AskVersions(*this, calls_, daemons); !asked.ok()) return asked;
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
