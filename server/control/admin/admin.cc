#include "server/control/admin/admin.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <utility>
#include <vector>

#include "common/wire/message.h"
#include "server/control/admin/list_pages.h"
#include "server/control/checkpoint/checkpoints.h"
#include "server/control/jobs/job_options.h"
#include "server/control/on_control.h"
#include "server/control/racks/rack_run.h"
#include "server/control/racks/rack_waiting.h"
#include "server/control/text.h"

namespace phub::server {

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
  info.set_place(context_.options.place);
  info.set_view(context_.options.view);
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

// The whole list for clients that do not request pages, in as many turns as it has pages.
struct Admin::WholeList {
  v1::ListJobsRequest request;  // for the next page
  v1::ListJobsResponse response;
  std::size_t bytes = 0;
  Answer<v1::ListJobsResponse> answer;
};

void Admin::ListMore(const std::shared_ptr<WholeList>& list) {
  ListJobs(list->request, [this, list](const absl::Status&, v1::ListJobsResponse page) {
    for (v1::JobInfo& job : *page.mutable_jobs()) {
      list->bytes += job.ByteSizeLong();
      list->response.add_jobs()->Swap(&job);
    }
    if (absl::Status fits = CheckWholeList(list->bytes, "jobs"); !fits.ok())
      return list->answer(fits, {});
    list->request.set_page_token(page.next_page_token());
    if (page.next_page_token().empty())
      return list->answer(absl::OkStatus(), std::move(list->response));
    context_.turns.RunLater(list->request.tenant(), [this, list] { ListMore(list); });
  });
}

// A page in the making. A job that is forgotten before all its ranks are described is left out.
struct Admin::Page {
  std::string tenant;  // empty: all
  std::size_t jobs_max = 0;
  std::uint64_t after = 0;   // the number of the last job that was described
  std::uint64_t number = 0;  // the job in `current`
  JobDescription current;
  v1::ListJobsResponse response;
  std::size_t bytes = 0;
  Answer<v1::ListJobsResponse> answer;
};

void Admin::ListJobs(const v1::ListJobsRequest& request, Answer<v1::ListJobsResponse> answer) {
  PHUB_ON_CONTROL();
  const auto page = std::make_shared<Page>();
  const std::string& token = request.page_token();
  const char* const end = token.data() + token.size();
  if (!token.empty() && std::from_chars(token.data(), end, page->after).ptr != end) {
    return answer(absl::InvalidArgumentError("the page token is not from this daemon"), {});
  }
  if (request.page_size() == 0) {
    const auto list = std::make_shared<WholeList>();
    list->request = request;
    list->request.set_page_size(static_cast<std::uint32_t>(context_.options.turn.jobs));
    list->answer = std::move(answer);
    return ListMore(list);
  }
  page->tenant = request.tenant();
  page->jobs_max = std::min<std::size_t>(request.page_size(), context_.options.turn.jobs);
  page->answer = std::move(answer);
  FillPage(page);
}

// A page ends at its number of jobs or when it has many bytes. It is filled in several turns if its
// jobs have many ranks.
void Admin::FillPage(const std::shared_ptr<Page>& page) {
  PHUB_ON_CONTROL();
  std::vector<const Job*> wanted;
  const auto want = [&](const auto& all) {
    for (const auto& job : all) {
      const bool is_its = page->tenant.empty() || job->account.tenant == page->tenant;
      if (is_its && job->number > page->after) wanted.push_back(job.get());
    }
  };
  want(jobs_.ended());
  want(jobs_.jobs());
  std::ranges::sort(wanted, {}, &Job::number);
  for (const Job* const job : wanted) {
    if (page->bytes >= kPageBytes ||
        static_cast<std::size_t>(page->response.jobs_size()) >= page->jobs_max) {
      page->response.set_next_page_token(fmt::format("{}", page->after));
      break;
    }
    if (std::exchange(page->number, job->number) != job->number) page->current = {};
    if (!descriptions_.DescribeMore(*job, page->current)) {
      return context_.turns.RunLater(page->tenant, [this, page] { FillPage(page); });
    }
    page->after = job->number;
    page->bytes += page->current.info.ByteSizeLong();
    page->response.add_jobs()->Swap(&page->current.info);
  }
  page->answer(absl::OkStatus(), std::move(page->response));
}

void Admin::GetJob(const v1::GetJobRequest& request, Answer<v1::JobInfo> answer) {
  PHUB_ON_CONTROL();
  const absl::StatusOr<const Job*> job = jobs_.FindJob(request.tenant(), request.job());
  if (!job.ok()) return answer(job.status(), {});
  descriptions_.Describe(
      **job, [this, name = (*job)->name(), answer = std::move(answer),
              incarnation = (*job)->account.incarnation](bool complete, v1::JobInfo info) {
        const Job* const found = jobs_.FindRun(incarnation);
        if (complete && found != nullptr) return AddExchange(*found, std::move(info), answer);
        answer(absl::NotFoundError(
                   fmt::format("job {} ended and was forgotten while it was described", name)),
               {});
      });
}

// Another thread simulates the exchange across racks.
void Admin::AddExchange(const Job& job, v1::JobInfo described, const Answer<v1::JobInfo>& answer) {
  const RackRun* const run = job.rack_run.get();
  if (run == nullptr) return answer(absl::OkStatus(), std::move(described));
  const auto info = std::make_shared<v1::JobInfo>(std::move(described));
  const auto prediction = StartPrediction(*run, info->exchange());
  if (prediction == nullptr) {
    AddPrediction(run->predicted, *info->mutable_exchange());
    return answer(absl::OkStatus(), std::move(*info));
  }
  context_.turns.RunLong(
      context_.options.turn.at_once + 1, job.account.tenant,
      [prediction] { Simulate(*prediction); },
      [this, prediction, info, answer, incarnation = job.account.incarnation] {
        Job* const found = jobs_.FindRun(incarnation);
        if (found != nullptr) found->rack_run->predicted = prediction->info;
        AddPrediction(prediction->info, *info->mutable_exchange());
        answer(absl::OkStatus(), std::move(*info));
      });
}

absl::StatusOr<Admin::JobPlan> Admin::PlanOf(const std::string& tenant,
                                             const std::string& job) const {
  PHUB_ON_CONTROL();
  const absl::StatusOr<const Job*> found = jobs_.FindJob(tenant, job);
  if (!found.ok()) return found.status();
  const RackRun* const run = (*found)->rack_run.get();
  if (run == nullptr || run->topology == nullptr)
    return absl::NotFoundError(fmt::format("job {} has no exchange plan", (*found)->name()));
  return JobPlan{run->topology, run->described.plan()};
}

bool Admin::IsRunning(const std::string& tenant, const std::string& job) const {
  PHUB_ON_CONTROL();
  const absl::StatusOr<const Job*> found = jobs_.FindJob(tenant, job);
  return found.ok() && (*found)->running();
}

}  // namespace phub::server
