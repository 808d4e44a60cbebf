#include "server/control/admin/admin.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <utility>
#include <vector>

#include "common/wire/message.h"
#include "server/control/checkpoint/checkpoints.h"
#include "server/control/jobs/job_options.h"
#include "server/control/on_control.h"
#include "server/control/racks/rack_run.h"
#include "server/control/racks/rack_waiting.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

constexpr std::size_t kPageBytes = 256 << 10;
constexpr std::size_t kListBytesMax = 16 << 20;  // without pages

void DescribeProgress(const Job& job, TimeNs now, v1::JobInfo& info) {
  const RoundProgress* const progress = ProgressOf(job);
  if (progress == nullptr) return;
  info.set_iteration(progress->iteration.Get());
  info.set_iteration_ns(static_cast<std::int64_t>(progress->iteration_ns.Get()));
  const auto at = static_cast<TimeNs>(progress->iteration_at.Get());
  if (at != 0) info.set_iteration_age_ns(std::max<DurationNs>(1, now - at));
}

bool IsAwaited(const Job& job) {
  return job.running() && std::ranges::any_of(job.members, [](const Member& member) {
           return member.state == Member::State::kAwaited;
         });
}

}  // namespace

v1::ServerInfo Admin::DescribeServer() const {
  PHUB_ON_CONTROL();
  v1::ServerInfo info;
  info.set_version(context_.options.version);
  info.set_commit(context_.options.commit);
  info.set_protocol_version_min(kProtocolVersionMin);
  info.set_protocol_version_max(kProtocolVersionMax);
  info.set_lane_version_min(wire::kLaneVersionMin);
  info.set_lane_version_max(wire::kLaneVersion);
  info.set_state(context_.drain.draining ? "draining" : "serving");
  info.set_uptime_ns(context_.clock.Now() - context_.started_at);
  info.set_core_count(static_cast<std::uint32_t>(context_.cores.size()));
  info.set_simd_target(context_.options.simd_target);
  info.mutable_listen()->Assign(addresses_.control.begin(), addresses_.control.end());
  info.mutable_data_listen()->Assign(addresses_.data.begin(), addresses_.data.end());
  info.mutable_metrics_listen()->Assign(addresses_.metrics.begin(), addresses_.metrics.end());
  info.set_job_count(static_cast<std::uint32_t>(std::count_if(
      jobs_.jobs().begin(), jobs_.jobs().end(), [](const auto& job) { return job->running(); })));
  if (!context_.options.rack_endpoints.empty()) {
    info.set_endpoint(context_.options.rack_endpoints[context_.options.rack_self]);
  }
  *info.mutable_rack() = local_rack_.DescribeRack();
  info.set_memory_bytes(context_.ledger.used_bytes());
  info.set_memory_bytes_max(context_.ledger.limit_bytes());
  if (context_.drain.draining) {
    info.set_drain_deadline_ns(
        std::max<DurationNs>(0, context_.drain.deadline - context_.clock.Now()));
  }
  return info;
}

void Admin::GetServer(const v1::GetServerRequest& /*request*/, Answer<v1::ServerInfo> answer) {
  answer(absl::OkStatus(), DescribeServer());
}

v1::JobInfo Admin::DescribeJob(const Job& job) const {
  PHUB_ON_CONTROL();
  const TimeNs now = context_.clock.Now();
  v1::JobInfo info;
  info.set_tenant(job.account.tenant);
  info.set_name(job.name());
  info.set_incarnation(FormatIncarnation(job.account.incarnation));
  info.set_state(ToString(job.state));
  info.set_world_size(std::max(job.settings.world_size, job.settings.ranks_of_job));
  if (job.rack_run != nullptr) plans_.DescribeExchange(job, *info.mutable_exchange());
  info.set_key_count(static_cast<std::uint32_t>(job.key_count));
  info.set_parameter_bytes(job.parameter_bytes);
  info.set_memory_bytes(job.released() && job.let_go.empty() ? 0 : job.memory_bytes);
  info.set_chunk_bytes(job.config.chunk_bytes);
  info.set_slots_per_lane(job.config.slots_per_lane);
  info.set_on_loss(ToString(job.settings.on_loss));
  info.set_age_ns(now - job.created_at);
  info.set_fault(job.fault.message());
  info.set_restart(job.settings.restart);
  info.set_wait_timeout_ns(job.settings.wait_timeout);
  info.set_screening(ToString(job.settings.screening));
  info.set_apply(ApplyName(job.settings));
  info.set_clip_norm(job.settings.clip_norm);
  info.set_skip_nonfinite(job.settings.skip_nonfinite);
  DescribeProgress(job, now, info);
  const WorkTotals totals = job.released() ? job.totals : totals_.TotalsOf(job);
  info.set_nonfinite_sums(totals.nonfinite_sums);
  info.set_nonfinite_gradients(totals.nonfinite_gradients);
  info.set_nonfinite_first(job.nonfinite_first);
  if (const auto saved = DescribeNewestSave(job, now)) *info.mutable_saved_state() = *saved;
  if (context_.ledger.RequiresEncryption(job.account.tenant)) info.set_encryption("required");
  DescribeLostElsewhere(job, now, info);
  if (IsAwaited(job)) {
    for (const std::string& hint : job.arrivals.hints) info.add_waiting_hints(hint);
  }
  for (std::uint32_t rank = 0; rank < job.members.size(); ++rank) {
    const Member& member = job.members[rank];
    v1::WorkerInfo& worker = *info.add_workers();
    worker.set_rank(rank + job.config.rank_base);
    worker.set_host(member.host);
    worker.set_pid(member.pid);
    worker.set_state(ToString(member.state));
    worker.set_address(member.address);
    if (member.last_heard != 0) worker.set_last_heartbeat_age_ns(now - member.last_heard);
    worker.set_restarts(member.restarts);
    const RankMetricsSum sum = metrics_.SumOfRank(job, Rank{rank});
    worker.set_rounds_last(sum.rounds_last);
    worker.set_straggler_wait_ns(sum.straggler_wait_ns);
    if (member.state == Member::State::kLost) {
      worker.set_awaited_for_ns(std::max<DurationNs>(0, member.awaited_until - now));
      worker.set_loss(member.absence);
    }
    worker.set_lanes_open(static_cast<std::uint32_t>(
        std::count_if(member.lanes.begin(), member.lanes.end(),
                      [](const LanePlace& place) { return place.connection != nullptr; })));
    for (std::size_t core = 0; core < member.lanes.size(); ++core) {
      v1::LaneInfo& lane = *worker.add_lanes();
      lane.set_core(CoreAt(core).value);
      lane.set_lane(stall_reports_.DescribeLane(member, CoreAt(core)));
      if (member.lanes[core].connection != nullptr) lane.set_reason(ReasonOf(job, lane.lane()));
    }
  }
  return info;
}

// Why a lane over this transport is as secure as its tenant requires.
std::string Admin::ReasonOf(const Job& job, std::string_view lane) const {
  const LaneTransports& transports = context_.options.lane_transports;
  const LaneTransport* const transport = FindTransportOf(transports, lane);
  if (transport == nullptr) return {};
  const bool first = transport == &transports.front();
  const bool required = context_.ledger.RequiresEncryption(job.account.tenant);
  return transport->privacy +
         (first && required ? "; RDMA is not used because the tenant requires encryption" : "");
}

// The whole list for clients that do not request pages, in as many turns as it has pages.
struct Admin::WholeList {
  v1::ListJobsRequest request;  // for the next page
  v1::ListJobsResponse response;
  std::size_t bytes = 0;
  Answer<v1::ListJobsResponse> answer;
};

void Admin::ListMore(const std::shared_ptr<WholeList>& list) {
  v1::ListJobsResponse page;
  ListJobs(list->request, [&](const absl::Status&, v1::ListJobsResponse next) {
    page = std::move(next);  // at once
  });
  for (v1::JobInfo& job : *page.mutable_jobs()) {
    list->bytes += job.ByteSizeLong();
    list->response.add_jobs()->Swap(&job);
  }
  if (list->bytes > kListBytesMax) {
    return list->answer(
        absl::ResourceExhaustedError(
            "the list of jobs is too long for one answer; request pages (page_size)"),
        {});
  }
  list->request.set_page_token(page.next_page_token());
  if (page.next_page_token().empty())
    return list->answer(absl::OkStatus(), std::move(list->response));
  if (context_.background == nullptr) return ListMore(list);
  context_.background->Run(
      list->request.tenant(), [] {}, [this, list] { ListMore(list); });
}

// A page ends at its number of jobs or when it has many bytes, so that a turn of control is short.
void Admin::ListJobs(const v1::ListJobsRequest& request, Answer<v1::ListJobsResponse> answer) {
  PHUB_ON_CONTROL();
  std::uint64_t after = 0;  // the number of the last job of the page before
  const std::string& token = request.page_token();
  const char* const end = token.data() + token.size();
  if (!token.empty() && std::from_chars(token.data(), end, after).ptr != end) {
    return answer(absl::InvalidArgumentError("the page token is not from this daemon"), {});
  }
  if (request.page_size() == 0) {
    const auto list = std::make_shared<WholeList>();
    list->request = request;
    list->request.set_page_size(static_cast<std::uint32_t>(context_.options.turn.jobs));
    list->answer = std::move(answer);
    return ListMore(list);
  }
  std::vector<const Job*> wanted;
  const auto want = [&](const auto& all) {
    for (const auto& job : all) {
      const bool is_its = request.tenant().empty() || job->account.tenant == request.tenant();
      if (is_its && job->number > after) wanted.push_back(job.get());
    }
  };
  want(jobs_.ended());
  want(jobs_.jobs());
  std::ranges::sort(wanted, {}, &Job::number);
  const std::size_t page = std::min<std::size_t>(request.page_size(), context_.options.turn.jobs);
  v1::ListJobsResponse response;
  std::size_t bytes = 0;
  for (const Job* const job : wanted) {
    if (bytes >= kPageBytes || static_cast<std::size_t>(response.jobs_size()) >= page) {
      response.set_next_page_token(fmt::format("{}", after));
      break;
    }
    v1::JobInfo& info = *response.add_jobs();
    info = DescribeJob(*job);
    bytes += info.ByteSizeLong();
    after = job->number;
    context_.turn.Add(1);
  }
  answer(absl::OkStatus(), std::move(response));
}

// Another thread simulates the exchange across racks.
void Admin::GetJob(const v1::GetJobRequest& request, Answer<v1::JobInfo> answer) {
  PHUB_ON_CONTROL();
  const absl::StatusOr<const Job*> job = jobs_.FindJob(request.tenant(), request.job());
  if (!job.ok()) return answer(job.status(), {});
  const auto info = std::make_shared<v1::JobInfo>(DescribeJob(**job));
  const RackRun* const run = (*job)->rack_run.get();
  if (run == nullptr) return answer(absl::OkStatus(), std::move(*info));
  const auto prediction = StartPrediction(*run, info->exchange());
  if (prediction == nullptr) {
    AddPrediction(run->predicted, *info->mutable_exchange());
    return answer(absl::OkStatus(), std::move(*info));
  }
  context_.RunLong(
      context_.options.turn.at_once + 1, (*job)->account.tenant,
      [prediction] { Simulate(*prediction); },
      [this, prediction, info, answer, incarnation = (*job)->account.incarnation] {
        Job* const found = jobs_.FindRun(incarnation);
        if (found != nullptr) found->rack_run->predicted = prediction->info;
        AddPrediction(prediction->info, *info->mutable_exchange());
        answer(absl::OkStatus(), std::move(*info));
      });
}

bool Admin::IsRunning(const std::string& tenant, const std::string& job) const {
  PHUB_ON_CONTROL();
  const absl::StatusOr<const Job*> found = jobs_.FindJob(tenant, job);
  return found.ok() && (*found)->running();
}

}  // namespace phub::server
